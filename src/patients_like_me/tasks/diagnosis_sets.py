"""The distinct diagnoses of every instance: what the patient graph is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

#: A sex or an age that is not recorded.
UNKNOWN: Final = -1


@dataclass(frozen=True)
class DiagnosisSets:
    """The distinct diagnoses of every instance, as rows of a sparse 0/1 matrix (CSR without values).

    Row ``i`` holds ``codes[indptr[i]:indptr[i + 1]]``, sorted and distinct, each an index into ``vocabulary``.
    Only diagnoses that the task allows as input of the instance are in its row. ``sexes`` (equal numbers are equal
    sexes) and ``ages`` are there for graphs that compare them; -1 is not recorded.

    >>> sets = DiagnosisSets.from_lists([["2", "50"], [], ["50"]], patients=[0, 1, 2])
    >>> sets.vocabulary, sets.of(0), len(sets)
    (('2', '50'), ('2', '50'), 3)
    """

    indptr: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int32]
    patients: npt.NDArray[np.int32]
    instance_ids: tuple[str, ...]
    vocabulary: tuple[str, ...]
    splits: npt.NDArray[np.str_] | None = None
    cohort_hash: str = ""
    sexes: npt.NDArray[np.int16] | None = None
    ages: npt.NDArray[np.int16] | None = None

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def of(self, instance: int) -> tuple[str, ...]:
        """Return the diagnoses of one instance by their codes."""
        row = self.codes[self.indptr[instance] : self.indptr[instance + 1]]
        return tuple(self.vocabulary[code] for code in row)

    @classmethod
    def from_lists(
        cls,
        diagnoses: list[list[str]],
        *,
        patients: list[int],
        instance_ids: list[str] | None = None,
        splits: list[str] | None = None,
        cohort_hash: str = "",
        sexes: list[int] | None = None,
        ages: list[int] | None = None,
    ) -> DiagnosisSets:
        """Make the sets from plain lists of codes, one list per instance."""
        vocabulary = tuple(sorted({code for row in diagnoses for code in row}))
        index = {code: position for position, code in enumerate(vocabulary)}
        rows = [sorted({index[code] for code in row}) for row in diagnoses]
        return cls(
            indptr=np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64),
            codes=np.array([code for row in rows for code in row], dtype=np.int32),
            patients=np.array(patients, dtype=np.int32),
            instance_ids=tuple(instance_ids or (str(position) for position in range(len(rows)))),
            vocabulary=vocabulary,
            splits=None if splits is None else np.array(splits),
            cohort_hash=cohort_hash,
            sexes=None if sexes is None else np.array(sexes, dtype=np.int16),
            ages=None if ages is None else np.array(ages, dtype=np.int16),
        )
