"""A finished run opened again beside its cohort: instances, graphs, embeddings and the trained graph network.

Evaluation by subgroup and every explanation start here. Nothing is trained or embedded anew: the embeddings were
written with the run, and the graphs are rebuilt from the diagnoses within a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.graph.build import build_graph
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.model.gcn import GraphNetwork
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.persistence import load_graph_network
from patients_like_me.model.propagation import FixedPropagation
from patients_like_me.records.cohort import Cohort
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.registry import find_task
from patients_like_me.tasks.task import Split, Task
from patients_like_me.training.bank import Bank
from patients_like_me.training.data import Rows
from patients_like_me.training.graphs import nodes_of_split
from patients_like_me.training.run import EMBEDDINGS, OWN_MODEL, Run
from patients_like_me.training.settings import TrainingSettings


@dataclass(frozen=True)
class OpenedRun:
    """A finished run with the cohort it was trained on."""

    run: Run
    cohort: Cohort
    instances: Instances

    @property
    def task(self) -> Task:
        """The task that was learned."""
        return self.instances.task

    @property
    def label_vocabulary(self) -> tuple[str, ...]:
        """What the labels stand for."""
        return tuple(self.run.about["label_vocabulary"])

    @property
    def is_own_model(self) -> bool:
        """Tell whether it has embeddings and a graph: a plain baseline has none."""
        return bool(self.run.about["identity"]["model"] == OWN_MODEL)

    @cached_property
    def settings(self) -> TrainingSettings:
        """The settings of the training."""
        return self.run.training_settings()

    @cached_property
    def model(self) -> PatientsLikeMeModel:
        """The whole model, its backbone loaded."""
        self.run.require_own_model()
        return PatientsLikeMeModel.from_pretrained(self.run.folder / "model")

    @cached_property
    def graph_network(self) -> GraphNetwork:
        """The trained graph network alone; no backbone is needed for it."""
        self.run.require_own_model()
        return load_graph_network(self.run.folder / "model")

    @cached_property
    def bank(self) -> Bank:
        """The training instances with their embeddings and outcomes."""
        self.run.require_own_model()
        return Bank.load(self.run.folder / "bank")

    @cached_property
    def graph(self) -> PatientGraph:
        """The graph over the instances of all splits."""
        return build_graph(self.instances.diagnosis_sets, self.settings.graph)

    def rows_of(self, split: Split) -> Rows:
        """Return the instance rows of a split, in the order of the predictions."""
        return self.instances.rows_of(split)

    def evaluated(self, split: Split) -> int:
        """Return how many of the last nodes of a split's graph are its own."""
        return len(self.rows_of(split))

    def node_rows(self, split: Split) -> Rows:
        """Return the instance row of every node of a split's graph."""
        splits: dict[Split, Rows] = {"train": self.rows_of("train"), split: self.rows_of(split)}
        return nodes_of_split(self.settings.graph.references, splits, split)

    def graph_of(self, split: Split) -> PatientGraph:
        """Return the graph on which a split is evaluated; in ``bank`` mode the training instances come first."""
        return self.graph.sub_graph(self.node_rows(split))

    def embeddings_of(self, split: Split) -> Tensor:
        """Return the embeddings of the nodes of a split's graph."""
        parts = {"train": self.bank.embeddings, **self._evaluated_embeddings}
        if split == "train" or self.settings.graph.references == "cohort":
            return parts[split]
        return torch.cat([parts["train"], parts[split]])

    @torch.no_grad()
    def logits_of(self, split: Split) -> Tensor:
        """Return the logits of a split's own instances, computed anew from the embeddings."""
        embeddings = self.embeddings_of(split)
        if not self.settings.uses_graph:
            return self.model.language_logits(embeddings[-self.evaluated(split) :])
        propagation = FixedPropagation.of_graph(self.graph_of(split))
        logits: Tensor = self.graph_network(embeddings, propagation)
        return logits[-self.evaluated(split) :]

    @cached_property
    def _evaluated_embeddings(self) -> dict[str, Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.run.folder / EMBEDDINGS
        try:
            return dict(load_file(path))
        except (OSError, SafetensorError) as error:
            raise PlmError(f"the embeddings '{path}' cannot be read ({error})", remedy="train the run anew") from None


def open_run(folder: Path | str, cohort: Path | str | None = None) -> OpenedRun:
    """Open a finished run and its cohort; ``cohort`` says where the cohort lies now, if it has moved."""
    run = Run.load(Path(folder))
    if not run.is_finished:
        raise PlmError(f"the run '{folder}' is not finished", remedy="give its plm train command again")
    identity = run.about["identity"]
    place = Path(run.about["cohort_folder"]) if cohort is None else Path(cohort)
    if not (place / "cohort.json").is_file():
        raise PlmError(
            f"the cohort of the run '{folder}' is not at '{place}'", remedy="say where it lies now with --cohort"
        )
    opened = Cohort.load(place)
    if opened.hash != identity["cohort"]:
        raise PlmError(
            f"the cohort '{place}' is not the one that the run '{folder}' was trained on",
            remedy="give the right one with --cohort",
        )
    task = find_task(identity["task"], opened)
    instances = build_instances(opened, task, task.settings(identity["task_settings"]))
    expected = sum(run.about["instances"].values())
    if len(instances) != expected or not np.array_equal(instances.label_vocabulary, run.about["label_vocabulary"]):
        raise PlmError(
            f"the cohort gives {len(instances):,} instances where the run '{folder}' had {expected:,}",
            remedy="train the run anew with this version",
        )
    return OpenedRun(run, opened, instances)
