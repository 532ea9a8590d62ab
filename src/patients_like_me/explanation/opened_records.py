"""The records behind a bank that was opened once: what every newcomer of a server is compared with and shown beside.

Rates of codes, ties to outcomes, names and the risks of others are counted when the bank is opened; a newcomer costs
the few people that a page shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.explanation.bank_records import BankRecords
from patients_like_me.explanation.counter_references import MOST_COUNTER_REFERENCES
from patients_like_me.explanation.decision import Decision
from patients_like_me.explanation.evidence import Evidence, TiedDiagnosis, tied_from_counts
from patients_like_me.explanation.scene import Scene
from patients_like_me.explanation.target_edges import Floats, Integers
from patients_like_me.records.cohort import KINDS, Kind
from patients_like_me.records.ids import KnownPeople
from patients_like_me.runs.run import Run
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets
from patients_like_me.tasks.instances import Instances

_NEAREST_AT_FIRST: Final = 1024
_MOST_TIES: Final = 1000


class OpenedRecords:
    """The references of a run with everything about them that newcomers share."""

    def __init__(self, run: Run, instance_ids: Sequence[str], subject_ids: Sequence[str]) -> None:
        self.run = run
        self.instance_ids = instance_ids
        #: The number of every patient of the bank.
        self.subjects: dict[str, int] = {}
        for subject in subject_ids:
            self.subjects.setdefault(subject, len(self.subjects))
        self.patients = np.array([self.subjects[subject] for subject in subject_ids], np.int32)
        self._people = KnownPeople(self.subjects)
        self._ties: dict[Any, tuple[tuple[TiedDiagnosis, ...], float]] = {}

    @cached_property
    def records(self) -> BankRecords:
        """The records behind the bank, also those added since the training; a bank that holds others is refused."""
        found = BankRecords(self.run.reference_instances)
        if list(self.instance_ids) != found.training.instance_ids:
            raise PlmError(
                "the bank holds references whose records are not with the run, so a page could not show them",
                remedy="add them again with plm bank add, which keeps their records",
            )
        return found

    @cached_property
    def other_probabilities(self) -> Floats:
        """The probabilities of the validation instances: whom a patient's risk is compared with."""
        frame = self.run.predictions(newcomers=True).filter(pl.col("split") == "validation")
        width = self.run.task.kind.outputs(len(self.run.label_vocabulary))
        return np.array(frame["probabilities"].to_list(), dtype=np.float64).reshape(-1, width)

    @cached_property
    def names(self) -> dict[Kind, dict[str, str]]:
        """The names of all codes of the run's cohort and of what was added to its bank."""
        return {kind: self.run.everyone.cohort.names(kind) for kind in KINDS}

    def warm(self) -> None:
        """Compute now what the first explanation would wait for."""
        _ = self.records.frequencies, self.records.diagnoses, self.other_probabilities, self.names

    def ties(self, decision: Decision, decided: tuple[int, ...]) -> tuple[tuple[TiedDiagnosis, ...], float] | None:
        """Return the diagnoses tied to what a decision is about, and how frequent that is; None for a set."""
        key = (decision.label, decided)
        found = self._ties.get(key)
        if found is None:
            happened = decision.happened(self.records.training.labels, decided)
            if happened is None:
                return None
            counts = self.records.outcome_counts(happened)
            base = float(happened.mean()) if len(happened) else 0.0
            found = tied_from_counts(counts, base, self.names["diagnosis"]), base
            if len(self._ties) > _MOST_TIES:
                self._ties.clear()
            self._ties[key] = found
        return found

    def evidence(self, scene: Scene, decision: Decision, decided: tuple[int, ...]) -> Evidence:
        """Return the names, rarity and ties of diagnoses."""
        counts, found = self.records.frequencies, self.ties(decision, decided)
        if found is None:
            return BankEvidence(scene, counts=counts)
        return BankEvidence(scene, found[0], decision.event(decided), found[1], counts)

    def numbered(self, instances: Instances, sets: DiagnosisSets) -> DiagnosisSets:
        """Return the sets of newcomers with the patients' numbers of the bank; others get numbers after them.

        Whose id looks like that of a patient of the bank may be that patient, and is never compared with oneself.
        """
        people = instances.cohort.patients["subject_id"].to_list()
        beyond = len(self.subjects)
        known = [self._people.number_of(people[number]) for number in sets.patients.tolist()]
        numbers = [
            beyond + number if same is None else same
            for same, number in zip(known, sets.patients.tolist(), strict=True)
        ]
        return replace(
            sets,
            patients=np.array(numbers, dtype=np.int32),
            # A patient of the bank may come with the same visit: its id must be another.
            instance_ids=tuple(f"new/{instance}" for instance in sets.instance_ids),
            splits=np.full(len(sets), "test"),
        )

    def share_farther(self, cosines: Floats, patient: int, cosine: float) -> float:
        """Return the share of the bank's instances of other patients with a lower cosine to a newcomer."""
        others = cosines[self.patients != patient]
        return float(np.mean(others < cosine)) if len(others) else 0.0

    def against(
        self,
        cosines: Floats,
        bank: DiagnosisSets,
        own: DiagnosisSets,
        decision: Decision,
        decided: tuple[int, ...],
        listed: Integers,
    ) -> list[tuple[int, int]]:
        """Return the nearest instances of the bank that disagree, one per patient, and the diagnoses shared.

        The patients of the instances ``listed`` are left out: a page shows them as references.
        """
        labels, codes = self.records.training.labels, set(own.of(0))
        found: list[tuple[int, int]] = []
        seen = {int(own.patients[0]), *self.patients[listed].tolist()}
        looked: set[int] = set()
        for some in (_NEAREST_AT_FIRST, len(cosines)):
            for place in highest(cosines, some):
                row = int(place)
                if row in looked:
                    continue
                looked.add(row)
                if int(self.patients[row]) in seen or decision.agrees(labels[row], decided):
                    continue
                shared = len(codes & set(bank.of(row)))
                if not shared:
                    continue
                seen.add(int(self.patients[row]))
                found.append((row, shared))
                if len(found) == MOST_COUNTER_REFERENCES:
                    return found
        return found


@dataclass(frozen=True, eq=False)
class BankEvidence(Evidence):
    """Evidence whose rates were counted when the bank was opened."""

    counts: dict[Kind, dict[str, int]] = field(default_factory=dict)

    @property
    def frequencies(self) -> dict[Kind, dict[str, int]]:
        """How many training instances have each code."""
        return self.counts


def highest(values: Floats, most: int) -> Integers:
    """Return the places of the highest values in falling order, equal ones in rising order of their places.

    >>> highest(np.array([0.1, 0.9, 0.5, 0.9]), 2).tolist()
    [1, 3]
    """
    if most >= len(values):
        return np.argsort(-values, kind="stable")
    least = np.partition(values, len(values) - most)[len(values) - most]
    places: npt.NDArray[np.int64] = np.flatnonzero(values >= least)
    return places[np.argsort(-values[places], kind="stable")]
