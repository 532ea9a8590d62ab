"""Predictions for patients who were in no cohort, by any system that can make them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.parts import failing_in_words
from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.predictions import ids_of, listed_probabilities
from patients_like_me.runs.run import Run, load_run
from patients_like_me.systems.contract import Fitted, System
from patients_like_me.systems.keeping import load_fitted
from patients_like_me.systems.registry import find_system
from patients_like_me.systems.returned_checks import checked_logits
from patients_like_me.tasks.instances import Instances, instances_to_predict


@dataclass(frozen=True)
class Predictor:
    """A finished run, ready to predict: ``Predictor.load("runs/vem").predict(cohort)``."""

    run: Run
    system: System
    fitted: Fitted

    @classmethod
    def load(cls, run: Run | Path | str) -> Predictor:
        """Load what a finished run fitted."""
        run = run if isinstance(run, Run) else load_run(run)
        _ = run.results
        if not run.capabilities.newcomers:
            raise PlmError(
                f"the system '{run.identity.system}' of the run '{run.folder}' does not predict new patients",
                remedy="give a run of another system; see plm systems",
            )
        system = find_system(run.identity.system)
        return cls(run, system, load_fitted(system, run))

    @property
    def output_labels(self) -> tuple[str, ...]:
        """What each probability is the probability of."""
        return self.run.output_labels

    def instances_of(self, cohort: Cohort, *, every_visit: bool = False) -> Instances:
        """Return each patient's last visit, or every visit, as instances without labels."""
        run = self.run
        return instances_to_predict(cohort, run.task, run.task_settings, run.label_vocabulary, every_visit=every_visit)

    def predict(
        self, cohort: Cohort, *, every_visit: bool = False, report: Callable[[str], None] = lambda _: None
    ) -> pl.DataFrame:
        """Predict each patient's last visit, or every visit: instance_id, subject_id, probabilities.

        A system with references adds ``references``, the number of training instances each prediction is linked to.
        """
        instances = self.instances_of(cohort, every_visit=every_visit)
        report(f"predicting {len(instances):,} histories")
        frame = ids_of(instances).select("instance_id", "subject_id")
        with failing_in_words(self.system, self.system.predict, "predicting"):
            if self.system.predict_linked is None:
                logits = self.system.predict(self.fitted, instances)
            else:
                logits, references = self.system.predict_linked(self.fitted, instances)
                frame = frame.with_columns(pl.Series("references", references))
        logits = checked_logits(self.system, logits, instances.task.kind, len(instances), len(self.output_labels))
        probabilities = self.run.calibrated(instances.task.kind.probabilities(logits), newcomers=True)
        return frame.with_columns(listed_probabilities(probabilities))
