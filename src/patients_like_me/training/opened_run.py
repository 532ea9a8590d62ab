"""A finished run of the trained model: a view of the run with its weights, for explanations and newcomers.

The run itself (:class:`patients_like_me.runs.run.Run`) has record, cohort, instances, graph and bank; here are the
parts that need torch. Explanations start from the embeddings that were written with the run; newcomers and changed
records are embedded in the same way as in training: the same device, the same precision, the same function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.graph.bank import Bank, Rows, read_embeddings
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.model.gcn import GraphNetwork
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.persistence import load_graph_network
from patients_like_me.model.propagation import FixedPropagation
from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.run import EMBEDDINGS, Run, load_run
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.task import Split, Task
from patients_like_me.training.preparation import place_backbone
from patients_like_me.training.settings import TrainingSettings
from patients_like_me.training.trained import TrainedModel


@dataclass(frozen=True)
class OpenedRun:
    """A finished run with references, and its trained model."""

    run: Run

    @property
    def cohort(self) -> Cohort:
        """The cohort that the run was trained on."""
        return self.run.cohort

    @property
    def instances(self) -> Instances:
        """The instances of the task, as the run had them."""
        return self.run.instances

    @property
    def task(self) -> Task:
        """The task that was learned."""
        return self.instances.task

    @property
    def label_vocabulary(self) -> tuple[str, ...]:
        """What the labels mean."""
        return self.run.label_vocabulary

    @property
    def graph(self) -> PatientGraph:
        """The graph over the instances of all splits."""
        return self.run.graph

    @property
    def bank(self) -> Bank:
        """The training instances with their embeddings and outcomes."""
        return self.run.bank

    @cached_property
    def bank_embeddings(self) -> Tensor:
        """The embeddings of the bank [training instances, width]."""
        return torch.from_numpy(self.bank.embeddings)

    @cached_property
    def settings(self) -> TrainingSettings:
        """The settings of the training; those of another version are refused."""
        self.run.require_references()
        try:
            return TrainingSettings.model_validate(self.run.identity.settings)
        except ValidationError as error:
            first = error.errors()[0]
            raise PlmError(
                f"the settings of the run '{self.run.folder}' are not those of this version "
                f"({'.'.join(str(part) for part in first['loc'])}: {first['msg'].lower()})",
                remedy="open it with the version that trained it, or train it again",
            ) from None

    @cached_property
    def model(self) -> PatientsLikeMeModel:
        """The whole model, its backbone loaded onto the device of the settings."""
        self.run.require_references()
        self.run.verify("model/")
        model = PatientsLikeMeModel.from_pretrained(self.run.folder / "model")
        place_backbone(model, self.settings)
        return model

    @cached_property
    def graph_network(self) -> GraphNetwork:
        """The trained graph network alone; no backbone is needed for it."""
        self.run.require_references()
        self.run.verify("model/")
        return load_graph_network(self.run.folder / "model")

    def rows_of(self, split: Split) -> Rows:
        """Return the instance rows of a split, in the order of the predictions."""
        return self.run.rows_of(split)

    def evaluated(self, split: Split) -> int:
        """Return how many of the last nodes of a split's graph are its own."""
        return self.run.evaluated(split)

    def node_rows(self, split: Split) -> Rows:
        """Return the instance row of every node of a split's graph."""
        return self.run.node_rows(split)

    def graph_of(self, split: Split) -> PatientGraph:
        """Return the graph on which a split is evaluated; in ``bank`` mode the training instances come first."""
        return self.run.graph_of(split)

    def embeddings_of(self, split: Split) -> Tensor:
        """Return the embeddings of the nodes of a split's graph."""
        parts = {"train": self.bank_embeddings, **self._evaluated_embeddings}
        if split == "train" or self.settings.graph.references == "cohort":
            return parts[split]
        return torch.cat([parts["train"], parts[split]])

    @torch.no_grad()
    def logits_of(self, split: Split) -> Tensor:
        """Return the logits of a split's own instances, computed again from the embeddings."""
        embeddings = self.embeddings_of(split)
        if not self.settings.uses_graph:
            return self.model.language_logits(embeddings[-self.evaluated(split) :])
        propagation = FixedPropagation.of_graph(self.graph_of(split))
        logits: Tensor = self.graph_network(embeddings, propagation)
        return logits[-self.evaluated(split) :]

    def embed(self, instances: Instances, rows: Sequence[int] | None = None) -> Tensor:
        """Return the embeddings of instances, or of some of their rows, as training computes them."""
        return TrainedModel(self.model, self.settings, self.bank).embed(instances, rows)

    @cached_property
    def _evaluated_embeddings(self) -> dict[str, Tensor]:
        self.run.verify(EMBEDDINGS)
        found = read_embeddings(self.run.folder / EMBEDDINGS)
        return {name: torch.from_numpy(values) for name, values in found.items()}


def open_run(folder: Path | str, cohort: Path | str | None = None) -> OpenedRun:
    """Open a finished run that has references; ``cohort`` is where its cohort is now, if it has moved."""
    run = load_run(folder, cohort)
    run.require_references()
    if not run.has_patient_graph:
        raise PlmError(
            f"the references of the run '{run.folder}' ({run.identity.system}) are not those of a graph network",
            remedy="give a run of the system patients_like_me",
        )
    # What is wrong with the cohort is said now, not at the first use of its instances.
    _ = run.results, run.instances
    return OpenedRun(run)
