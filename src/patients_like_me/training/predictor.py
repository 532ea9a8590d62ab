"""``PatientsLikeMe``: a finished run, ready to predict for new patients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.prompt_inputs import prepare_inputs
from patients_like_me.model.propagation import FixedPropagation
from patients_like_me.records.cohort import Cohort
from patients_like_me.tasks.instances import Instances, instances_to_predict
from patients_like_me.tasks.prompts import write_prompts
from patients_like_me.tasks.registry import stored_task
from patients_like_me.tasks.task import Task, TaskSettings
from patients_like_me.training.bank import Bank
from patients_like_me.training.data import predicted
from patients_like_me.training.run import Run
from patients_like_me.training.settings import TrainingSettings


@dataclass
class PatientsLikeMe:
    """A trained model with its bank.

    ``PatientsLikeMe.from_pretrained(run).predict(cohort)`` returns a table of predictions for new patients: each is
    linked to the labelled training instances, so a prediction does not depend on who else is predicted, and never to
    an instance of the same patient.
    """

    model: PatientsLikeMeModel
    bank: Bank
    settings: TrainingSettings
    task: Task
    task_settings: TaskSettings
    label_vocabulary: tuple[str, ...]

    @classmethod
    def from_pretrained(cls, folder: Path | str) -> PatientsLikeMe:
        """Load a finished run folder."""
        run = Run.load(Path(folder))
        if not run.is_finished:
            raise PlmError(f"the run '{folder}' is not finished", remedy="give its plm train command again")
        settings = run.training_settings()
        identity, task = run.about["identity"], stored_task(run.about["task"])
        return cls(
            model=PatientsLikeMeModel.from_pretrained(run.folder / "model"),
            bank=Bank.load(run.folder / "bank"),
            settings=settings,
            task=task,
            task_settings=task.settings(identity["task_settings"]),
            label_vocabulary=tuple(run.about["label_vocabulary"]),
        )

    @property
    def output_labels(self) -> tuple[str, ...]:
        """What each probability stands for."""
        return self.label_vocabulary[-self.task.kind.outputs(len(self.label_vocabulary)) :]

    def predict(
        self, cohort: Cohort, *, every_visit: bool = False, report: Callable[[str], None] = lambda _: None
    ) -> pl.DataFrame:
        """Predict each patient's last visit, or every visit: instance_id, subject_id, references, probabilities."""
        instances = instances_to_predict(
            cohort, self.task, self.task_settings, self.label_vocabulary, every_visit=every_visit
        )
        report(f"reading {len(instances):,} histories")
        embeddings = self.embed(instances)
        extended = self.extended_graph(instances)
        report("predicting")
        logits = self.logits(embeddings, extended)
        chances = predicted(self.task.kind, logits).reshape(len(instances), -1)
        ids = instances.frame.join(
            cohort.patients.select("subject", "subject_id"), on="subject", how="left", maintain_order="left"
        )
        return ids.select("instance_id", "subject_id").with_columns(
            pl.Series("references", extended.degrees[len(self.bank.embeddings) :]),
            pl.Series("probabilities", chances.astype("float32").tolist(), dtype=pl.List(pl.Float32)),
        )

    def embed(self, instances: Instances) -> Tensor:
        """Return the embeddings of instances."""
        backbone = self.model.backbone
        budget = min(self.settings.max_tokens, backbone.max_tokens)
        prompts = write_prompts(instances, backbone.count_tokens, budget=budget)
        return self.model.embed_all(prepare_inputs(backbone, prompts.texts, max_tokens=budget))

    def extended_graph(self, instances: Instances) -> PatientGraph:
        """Return the bank's graph with the instances as further nodes, which only receive.

        An instance of the same patient is never a neighbour, also where a patient of the bank comes again.
        """
        known: dict[str, int] = {}
        for subject in self.bank.instances["subject_id"]:
            known.setdefault(subject, len(known))
        in_bank = np.array([known[subject] for subject in self.bank.instances["subject_id"]], dtype=np.int32)
        graph = replace(self.bank.graph, sets=replace(self.bank.graph.sets, patients=in_bank))
        subjects = instances.cohort.patients["subject_id"].to_list()
        for subject in subjects:
            known.setdefault(subject, len(known))
        sets = instances.diagnosis_sets
        newcomers = replace(
            sets,
            patients=np.array([known[subjects[number]] for number in sets.patients], dtype=np.int32),
            # A patient of the bank may come with the same visit: its id must be another.
            instance_ids=tuple(f"new/{instance}" for instance in sets.instance_ids),
            splits=np.full(len(sets), "test"),
        )
        return graph.extend(newcomers, patients="shared")

    @torch.no_grad()
    def logits(self, embeddings: Tensor, extended: PatientGraph) -> Tensor:
        """Return the logits of the newcomers, the last nodes of the extended graph."""
        if not self.settings.uses_graph:
            return self.model.language_logits(embeddings)
        everyone = torch.cat([self.bank.embeddings, embeddings])
        return self.model.graph_logits(everyone, FixedPropagation.of_graph(extended))[len(self.bank.embeddings) :]
