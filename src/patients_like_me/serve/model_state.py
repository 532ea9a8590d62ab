"""The run that is served: opened once, and replaced as a whole when its bank changes.

:class:`OpenedModel` holds everything of one version of a run that requests share. :class:`ModelState` hands out the
current one. It looks at the run folder now and then; when the bank has another version, the new one is opened in the
background while requests are answered with the old, and one assignment swaps them.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.predictions import read_predictions
from patients_like_me.explanation.decision import Decision, decision_for, decision_of_run
from patients_like_me.explanation.what_if import CHANGED_KINDS
from patients_like_me.records.cohort import KINDS, Kind
from patients_like_me.runs.run import Run, load_run
from patients_like_me.serve.problems import is_end_of_work
from patients_like_me.serve.turns import apart
from patients_like_me.serve.worklist import Ranges
from patients_like_me.systems.predictor import Predictor
from patients_like_me.tasks.instances import Instances, instances_to_predict
from patients_like_me.tasks.one_instance import instance_to_predict

if TYPE_CHECKING:
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.serve.answering import Answering

LOG: Final = logging.getLogger("patients_like_me.serve")
#: The run folder is looked at again after this many seconds.
LOOK_AGAIN: Final = 2.0


@dataclass(frozen=True)
class Reach:
    """What the patients of a bank cover: their diagnoses, and their ages where any is recorded."""

    diagnoses: frozenset[str]
    youngest: int | None
    oldest: int | None

    def left_by(self, diagnoses: Sequence[str], age: int | None) -> str:
        """Say in what a patient is outside of it; nothing where the patient is inside.

        >>> reach = Reach(frozenset({"108", "50"}), 18, 90)
        >>> reach.left_by(["108", "2"], 70), reach.left_by(["108"], 5)
        ('', 'nobody in the bank is that young')
        """
        if diagnoses and sum(code not in self.diagnoses for code in diagnoses) > len(diagnoses) / 2:
            return "nobody in the bank has most of these diagnoses"
        if age is not None and self.youngest is not None and age < self.youngest:
            return "nobody in the bank is that young"
        if age is not None and self.oldest is not None and age > self.oldest:
            return "nobody in the bank is that old"
        return ""


class OpenedModel:
    """One version of a run, with all that is computed once."""

    def __init__(self, run: Run, version: str) -> None:
        self.run = run
        self.version = version
        self.predictor = Predictor.load(run)
        self._decisions: dict[tuple[str | None, float | None], Decision] = {}

    @property
    def has_references(self) -> bool:
        """Tell whether predictions can be explained by references."""
        return self.run.capabilities.references

    @cached_property
    def cohort(self) -> Cohort:
        """The cohort of the run, from which pages show the references."""
        return self.run.cohort

    @cached_property
    def answering(self) -> Answering:
        """How patients are predicted and explained: with references, or predicted alone."""
        from patients_like_me.serve.answering import answering_of

        return answering_of(self)

    def instances_of(self, cohort: Cohort) -> Instances:
        """Return the last visit of each patient as instances."""
        run = self.run
        if cohort.patients.height == 1 and cohort.visits.height:
            return instance_to_predict(cohort, run.task, run.task_settings, run.label_vocabulary)
        return instances_to_predict(cohort, run.task, run.task_settings, run.label_vocabulary)

    def codes_seen(self, cohort: Cohort) -> dict[Kind, list[str]]:
        """Return the codes of each kind that the prediction of the one patient of a cohort may see."""
        instances = self.instances_of(cohort)
        return {kind: instances.inputs(kind)["code"].unique().to_list() for kind in KINDS}

    def kinds_to_add(self, cohort: Cohort) -> tuple[Kind, ...]:
        """Return the kinds of code that a what-if can add to the one patient of a cohort.

        The task must see a visit to which one could be added, and somebody of the training must have had one.
        """
        instances = self.instances_of(cohort)
        current = instances.task.inputs_of_current_visit(instances.settings)
        known = set(self.cohort.vocabulary["kind"].unique().to_list())
        return tuple(
            kind for kind in CHANGED_KINDS if kind in known and (kind in current or instances.history.height > 0)
        )

    def decision(self, drug: str | None = None, threshold: float | None = None) -> Decision:
        """Return how probabilities are read; the threshold that was tuned on validation is found once."""
        key = (drug, threshold)
        found = self._decisions.get(key)
        if found is None:
            kind = self.run.task.label_codes
            names = self.label_names if kind else {}
            if threshold is None and drug is not None:
                usual = self.decision()
                found = decision_for(self.run.task, self.run.label_vocabulary, names=names, drug=drug)
                from dataclasses import replace

                found = replace(found, threshold=usual.threshold, threshold_origin=usual.threshold_origin)
            else:
                found = decision_of_run(self.run, newcomers=True, names=names, drug=drug, threshold=threshold)
            if threshold is None:
                # A threshold can be any number: what belongs to one request is not kept.
                self._decisions[key] = found
        return found

    @cached_property
    def label_names(self) -> dict[str, str]:
        """The readable names of labels that are codes; the codes themselves where the cohort is not there."""
        kind = self.run.task.label_codes
        if kind is None:
            return {}
        try:
            return self.cohort.names(kind)
        except PlmError:
            return {}

    @cached_property
    def reach(self) -> Reach | None:
        """What the bank of this version covers; None where its records are not there."""
        try:
            bank = self.run.reference_instances
        except PlmError:
            return None
        ages = bank.cohort.visits["age"].gather(bank.frame["visit"]).drop_nulls().to_list()
        codes = bank.inputs("diagnosis")["code"].unique().to_list()
        return Reach(frozenset(codes), min(ages, default=None), max(ages, default=None))

    @cached_property
    def ranges(self) -> Ranges | None:
        """What happened to validation patients by their predictions; a set of drugs has no single probability."""
        kind = self.run.task.kind
        found = read_predictions(self.run, newcomers=True).of_split("validation")
        if kind.is_set:
            return None
        # Where the shown probability is that of the predicted class: how often was the class right?
        shown, happened = kind.compared(found.labels, found.probabilities)
        return Ranges.of(shown.ravel(), happened.ravel(), kind.happened_in_words(self.run.task.words.happened))

    def warm(self) -> None:
        """Do now what the first request would have to wait for."""
        self.decision()
        self.answering.warm()


class ModelState:
    """The current model of a run folder."""

    def __init__(
        self, folder: Path, trained_on: Path | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.folder = folder
        self.trained_on = trained_on
        self.clock = clock
        self._lock = threading.Lock()
        self._looked = clock()
        self._opening: threading.Thread | None = None
        self._refused = ""
        self._current = apart(lambda: self._open(version_of(folder)))

    @property
    def version(self) -> str:
        """The version of the bank that answers."""
        return self.current.version

    @property
    def current(self) -> OpenedModel:
        """The model that answers now; a newer bank is opened beside it."""
        if self.clock() - self._looked > LOOK_AGAIN:
            self.look()
        return self._current

    def look(self, *, wait: bool = False) -> None:
        """Look whether the run has another version; with ``wait`` return when that one answers."""
        with self._lock:
            self._looked = self.clock()
            busy = self._opening is not None and self._opening.is_alive()
            if not busy:
                wanted = version_of(self.folder)
                if wanted not in (self._current.version, self._refused):
                    self._opening = threading.Thread(target=self._replace, args=(wanted,), daemon=True)
                    self._opening.start()
            opening = self._opening
        if wait and opening is not None:
            opening.join()

    def _open(self, version: str) -> OpenedModel:
        model = OpenedModel(load_run(self.folder, self.trained_on), version)
        model.warm()
        return model

    def _replace(self, version: str) -> None:
        try:
            self._current = self._open(version)
            LOG.info("the bank was replaced; version %s answers", version)
        except BaseException as error:
            if is_end_of_work(error):
                raise
            # A thread has nobody who would hear of it. A bank that is being written is whole a moment later, and then
            # has yet another version.
            self._refused = version
            LOG.warning("a new version of the run cannot be opened (%s); the old one answers", type(error).__name__)


def version_of(folder: Path) -> str:
    """Return what names the present version of a run: it differs when its record, model or bank were written again."""
    parts: list[Any] = []
    for name in (
        "run.json",
        "fitted.json",
        "fitted.safetensors",
        "bank",
        "bank/instances.parquet",
        "bank/current.json",
    ):
        try:
            about = (folder / name).stat()
        except OSError:
            continue
        parts.append((name, about.st_mtime_ns, about.st_size, about.st_ino))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
