"""What neural systems see: per visit the codes of each kind, the gaps between visits, and demographics.

Everything comes from what the task allows (:meth:`Instances.inputs`, :attr:`Instances.history`), and the vocabularies
from training instances alone: a code that no training instance has is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.records.cohort import KINDS, Kind
from patients_like_me.systems.bags import demographics_of
from patients_like_me.systems.problem import only
from patients_like_me.tasks.instances import Instances, Rows

if TYPE_CHECKING:
    from torch import Tensor

#: The code number that stands for padding; real codes count from 1.
PADDING = 0


@dataclass(frozen=True)
class VisitBatch:
    """Some instances as tensors, padded to the longest of them; visits are in order, the current one last.

    ``codes[kind]`` [B, visits, codes] are code numbers, ``visit_mask`` [B, visits] marks real visits, ``gaps`` [B,
    visits] are days since the admission before (0 for a first visit, and where a date is missing), ``dated`` [B] is
    False where the date of some visit is missing, ``demographics`` is [B, features].
    """

    codes: Mapping[str, Tensor]
    visit_mask: Tensor
    gaps: Tensor
    dated: Tensor
    demographics: Tensor


@dataclass(frozen=True)
class Vocabularies:
    """The codes of each kind and the demographic features that training instances have, in alphabetical order."""

    codes: Mapping[Kind, tuple[str, ...]]
    demographics: tuple[str, ...]

    @classmethod
    def of_training(cls, instances: Instances, train: Rows) -> Vocabularies:
        """Collect the vocabularies of the training instances."""
        training = only(instances, train)
        return cls(
            {kind: tuple(sorted(training.inputs(kind)["code"].unique().to_list())) for kind in KINDS},
            tuple(sorted(demographics_of(training)["feature"].unique().to_list())),
        )

    def size(self, kind: Kind) -> int:
        """Return the number of rows an embedding of a kind needs, padding included."""
        return 1 + len(self.codes[kind])

    def as_json(self) -> dict[str, Any]:
        """Return the vocabularies as plain data, for ``Fitted.facts``."""
        return {
            "codes": {kind: list(codes) for kind, codes in self.codes.items()},
            "demographics": list(self.demographics),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Vocabularies:
        """Read what :meth:`as_json` returned."""
        return cls({kind: tuple(content["codes"][kind]) for kind in KINDS}, tuple(content["demographics"]))


@dataclass(frozen=True)
class VisitFeatures:
    """All instances as arrays; :meth:`batch` makes padded tensors of some of them."""

    visits: npt.NDArray[np.int64]
    gaps: npt.NDArray[np.float32]
    dated: npt.NDArray[np.bool_]
    first_visit: npt.NDArray[np.int64]
    #: Of each kind the rows (place of the visit, code number), and where those of an instance begin.
    codes: Mapping[Kind, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]]
    demographics: npt.NDArray[np.float32]

    @classmethod
    def of(cls, instances: Instances, vocabularies: Vocabularies) -> VisitFeatures:
        """Gather the features of instances."""
        seen = _visits_seen(instances)
        counts = np.bincount(seen["instance"].to_numpy(), minlength=len(instances))
        undated = seen.filter(pl.col("admission_time").is_null())["instance"].to_numpy()
        codes = {}
        for kind in KINDS:
            numbers = pl.DataFrame({"code": vocabularies.codes[kind]}, schema={"code": pl.String}).with_row_index(
                "number", offset=1
            )
            entries = (
                instances.inputs(kind)
                .unique()
                .join(numbers, on="code", how="inner")
                .join(seen.select("instance", "visit", "place"), on=["instance", "visit"], how="inner")
                .sort("instance", "place", "number")
            )
            starts = np.concatenate(
                [[0], np.cumsum(np.bincount(entries["instance"].to_numpy(), minlength=len(instances)))]
            )
            codes[kind] = (
                entries["place"].to_numpy().astype(np.int64),
                entries["number"].to_numpy().astype(np.int64),
                starts,
            )
        return cls(
            visits=counts.astype(np.int64),
            gaps=seen["gap"].to_numpy().astype(np.float32),
            dated=np.bincount(undated, minlength=len(instances)) == 0,
            first_visit=np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64),
            codes=codes,
            demographics=_demographic_columns(instances, vocabularies.demographics),
        )

    def batch(self, rows: Rows) -> VisitBatch:
        """Return some instances as padded tensors."""
        import torch

        lengths = self.visits[rows]
        longest = int(lengths.max(initial=1))
        mask = np.arange(longest)[None, :] < lengths[:, None]
        gaps = np.zeros(mask.shape, dtype=np.float32)
        gaps[mask] = self.gaps[_ranges(self.first_visit[rows], lengths)]
        return VisitBatch(
            codes={kind: torch.from_numpy(self._padded(kind, rows, longest)) for kind in KINDS},
            visit_mask=torch.from_numpy(mask),
            gaps=torch.from_numpy(gaps),
            dated=torch.from_numpy(self.dated[rows]),
            demographics=torch.from_numpy(self.demographics[rows]),
        )

    def _padded(self, kind: Kind, rows: Rows, longest: int) -> npt.NDArray[np.int64]:
        places, numbers, starts = self.codes[kind]
        sizes = starts[rows + 1] - starts[rows]
        chosen = _ranges(starts[rows], sizes)
        visit = np.repeat(np.arange(len(rows)), sizes) * longest + places[chosen]
        per_visit = np.bincount(visit, minlength=len(rows) * longest)
        within = np.arange(len(visit)) - np.repeat(np.cumsum(per_visit) - per_visit, per_visit)
        padded = np.full((len(rows) * longest, max(1, int(per_visit.max(initial=0)))), PADDING, dtype=np.int64)
        padded[visit, within] = numbers[chosen]
        return padded.reshape(len(rows), longest, -1)


def _ranges(starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the numbers from each start on, as many as its size says, one range after the other.

    >>> _ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(sizes)
    numbers: npt.NDArray[np.int64] = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - sizes), sizes)
    return numbers


def _visits_seen(instances: Instances) -> pl.DataFrame:
    """Return the visits of every instance, the current one last: instance, visit, place (from 0), gap in days."""
    current = instances.frame.select("instance", "visit")
    times = instances.cohort.visits.select("visit", "admission_time")
    days = (pl.col("admission_time") - pl.col("admission_time").shift(1)).dt.total_seconds() / 86_400
    return (
        pl.concat([instances.history, current])
        .sort("instance", "visit")
        .join(times, on="visit", how="left", maintain_order="left")
        .with_columns(
            (pl.int_range(pl.len()).over("instance")).alias("place"),
            days.over("instance").fill_null(0.0).cast(pl.Float64).alias("gap"),
        )
    )


def _demographic_columns(instances: Instances, features: tuple[str, ...]) -> npt.NDArray[np.float32]:
    columns = pl.DataFrame({"feature": features}, schema={"feature": pl.String}).with_row_index("column")
    entries = demographics_of(instances).join(columns, on="feature", how="inner")
    values = np.zeros((len(instances), len(features)), dtype=np.float32)
    values[entries["instance"].to_numpy(), entries["column"].to_numpy()] = entries["value"].to_numpy()
    return values
