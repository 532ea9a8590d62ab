r"""The codes of every training visit, each visit once, and which codes come together more often than by chance.

A training instance stands for its current visit. Codes that the task hides because they are the answer are taken from
the training labels; nothing of validation or test is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.records.cohort import KINDS
from patients_like_me.systems.features import Vocabularies
from patients_like_me.systems.problem import Problem, only

#: 0/1 [training visits, codes] as a scipy CSR array.
Incidence = Any


@dataclass(frozen=True)
class TrainingVisits:
    """Per kind the codes and which training visits have them, in the order of ``problem.train``."""

    codes: Mapping[str, tuple[str, ...]]
    incidence: Mapping[str, Incidence]

    @classmethod
    def of(cls, problem: Problem, vocabularies: Vocabularies) -> TrainingVisits:
        """Collect the visits; drug labels that are never an input come behind the codes of the vocabulary."""
        from scipy.sparse import csr_array

        training = only(problem.instances, problem.train)
        labelled = training.task.label_codes
        codes: dict[str, tuple[str, ...]] = {}
        incidence: dict[str, Incidence] = {}
        for kind in KINDS:
            known = vocabularies.codes[kind]
            found = training.current_codes(kind).select("instance", "code").unique()
            rows, names = found["instance"].to_numpy(), found["code"]
            if labelled == kind:
                labels = training.label_vocabulary
                known = (*known, *(code for code in labels if code not in set(known)))
                rows, columns = np.nonzero(problem.targets > 0)
                names = pl.Series([labels[column] for column in columns], dtype=pl.String)
            if not known:
                continue
            number = {code: at for at, code in enumerate(known)}
            places = np.array([number.get(code, -1) for code in names.to_list()], dtype=np.int64)
            kept = places >= 0
            values = np.ones(int(kept.sum()), dtype=np.float64)
            codes[kind] = tuple(known)
            incidence[kind] = csr_array(
                (values, (np.asarray(rows)[kept], places[kept])), shape=(len(problem.train), len(known))
            )
        return cls(codes, incidence)

    def counts(self, kind: str) -> npt.NDArray[np.float64]:
        """Return in how many training visits each code occurs."""
        return np.asarray(self.incidence[kind].sum(axis=0)).ravel()

    def partners(self, kind: str, others: Sequence[str], most: int) -> list[list[tuple[str, int, float]]]:
        """Return for each code of a kind the codes of other kinds with the largest positive PMI: kind, place, PMI."""
        found: list[list[tuple[str, int, float]]] = [[] for _ in self.codes[kind]]
        for other in others:
            if other in self.incidence:
                for first, second, value in self.associations(kind, other):
                    found[first].append((other, second, value))
        return [sorted(row, key=lambda each: (-each[2], each[0], each[1]))[:most] for row in found]

    def associations(self, kind: str, other: str, least: int = 2) -> list[tuple[int, int, float]]:
        """Return pairs of codes that share at least ``least`` visits and have a positive PMI, with it.

        PMI = log(N n_ab / (n_a n_b)), N the number of visits. Within one kind each pair comes in both directions.
        """
        together = (self.incidence[kind].T @ self.incidence[other]).tocoo()
        first, second, shared = together.row, together.col, together.data
        visits = self.incidence[kind].shape[0]
        kept = shared >= least
        if kind == other:
            kept &= first != second
        first, second, shared = first[kept], second[kept], shared[kept]
        values = np.log(visits * shared / (self.counts(kind)[first] * self.counts(other)[second]))
        order = np.lexsort((second, first))
        return [(int(first[at]), int(second[at]), float(values[at])) for at in order if values[at] > 0]


def common_codes(counts: npt.NDArray[np.float64], share: float) -> npt.NDArray[np.bool_]:
    """Mark the most frequent codes that together make up a share of all occurrences; the others are rare.

    >>> common_codes(np.array([1.0, 6.0, 3.0]), 0.8).tolist()
    [False, True, True]
    """
    order = np.argsort(-counts, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(counts[order])[:-1]])
    common = np.zeros(len(counts), dtype=bool)
    common[order[before < share * counts.sum()]] = True
    return common
