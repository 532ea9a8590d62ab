"""The records of a bank, cut to the few people that one page shows.

An explanation of one newcomer shows ten references and a few counter-references. Their visits and codes are taken out
of the cohort by place, so that nothing of the size of the bank is joined or copied for a single page.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.explanation.target_edges import Integers
from patients_like_me.records.cohort import KINDS, Kind
from patients_like_me.tasks.instances import Instances


@dataclass(frozen=True, eq=False)
class BankRecords:
    """The training instances of a run, in the order of its bank."""

    training: Instances

    @cached_property
    def _places(self) -> dict[str, Integers]:
        names = ("visit", "first_visit", "subject")
        return {name: self.training.frame[name].to_numpy().astype(np.int64) for name in names}

    @cached_property
    def _starts(self) -> dict[Kind, Integers]:
        """Where the codes of each visit begin; the tables are sorted by visit."""
        visits = np.arange(self.training.cohort.visits.height + 1)
        found = {}
        for kind in KINDS:
            of_rows = self.training.cohort.codes[kind]["visit"].to_numpy()
            if (np.diff(of_rows.astype(np.int64)) < 0).any():
                raise ValueError(f"the table of {kind} codes is not sorted by visit")
            found[kind] = np.searchsorted(of_rows, visits)
        return found

    @cached_property
    def frequencies(self) -> dict[Kind, dict[str, int]]:
        """How many training instances have each code, as far as each may see."""
        return {
            kind: dict(self.seen(kind).group_by("code").len().iter_rows())
            for kind in KINDS
        }  # fmt: skip

    def seen(self, kind: Kind) -> pl.DataFrame:
        """Return instance and code of everything of a kind that training instances may see."""
        return self.training.inputs(kind).select("instance", "code").unique()

    @cached_property
    def diagnoses(self) -> tuple[list[str], Any]:
        """The diagnoses, and who has them: a matrix [diagnoses, instances] of ones."""
        from scipy.sparse import csr_array

        sets = self.training.diagnosis_sets
        shape = (len(sets), len(sets.vocabulary))
        by_instance = csr_array((np.ones(len(sets.codes), np.float64), sets.codes, sets.indptr), shape=shape)
        return list(sets.vocabulary), by_instance.T.tocsr()

    def outcome_counts(self, happened: npt.NDArray[np.bool_]) -> pl.DataFrame:
        """Return of each diagnosis how many instances have it, and with how many of them something happened."""
        names, matrix = self.diagnoses
        return pl.DataFrame(
            {
                "code": names,
                "instances": np.diff(matrix.indptr).astype(np.int64),
                "with_outcome": (matrix @ happened.astype(np.float64)).round().astype(np.int64),
            },
            schema={"code": pl.String, "instances": pl.Int64, "with_outcome": pl.Int64},
        )

    def cut_to(self, rows: Integers) -> Instances:
        """Return some training instances, in the order given, with nobody else's visits in their cohort."""
        cohort, frame = self.training.cohort, self.training.frame
        visit, first, subject = (self._places[name][rows] for name in ("visit", "first_visit", "subject"))
        # A history is one run of visits; a person who came again to a bank that grew may have two of them.
        starts, history = np.unique(first, return_inverse=True)
        ends = np.full(len(starts), -1)
        np.maximum.at(ends, history, visit)
        owners = np.zeros(len(starts), dtype=np.int64)
        people, number = np.unique(subject, return_inverse=True)
        owners[history] = number
        counts = ends - starts + 1
        shift = (np.cumsum(counts) - counts - starts)[history]
        old = np.concatenate([np.arange(a, b + 1) for a, b in zip(starts, ends, strict=True)]) if len(rows) else starts
        visits = cohort.visits[pl.Series(old, dtype=pl.UInt32)].with_columns(
            pl.Series("visit", np.arange(len(old)), dtype=pl.UInt32),
            pl.Series("subject", np.repeat(owners, counts), dtype=pl.UInt32),
        )
        codes = {}
        for kind in KINDS:
            begin, end = self._starts[kind][old], self._starts[kind][old + 1]
            places = np.concatenate([np.arange(a, b) for a, b in zip(begin, end, strict=True)]) if len(old) else old
            of_visit = pl.Series("visit", np.repeat(np.arange(len(old)), end - begin), dtype=pl.UInt32)
            codes[kind] = cohort.codes[kind][pl.Series(places, dtype=pl.UInt32)].with_columns(of_visit)
        patients = cohort.patients[pl.Series(people, dtype=pl.UInt32)].with_columns(
            pl.Series("subject", np.arange(len(people)), dtype=pl.UInt32)
        )
        small = replace(
            cohort,
            patients=patients,
            visits=visits,
            codes=codes,
            labels=cohort.labels.clear(),
            known_hash=cohort.hash,
            folder=None,
        )
        cut = frame[pl.Series(rows, dtype=pl.UInt32)].with_columns(
            pl.Series("instance", np.arange(len(rows)), dtype=frame.schema["instance"]),
            pl.Series("visit", visit + shift, dtype=frame.schema["visit"]),
            pl.Series("first_visit", first + shift, dtype=frame.schema["first_visit"]),
            pl.Series("subject", number, dtype=frame.schema["subject"]),
        )
        return replace(self.training, cohort=small, frame=cut, labels=self.training.labels[rows])
