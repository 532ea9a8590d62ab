"""How far patients have moved away from a bank: rates of codes, distance to the nearest reference, shares without one.

A difference counts only if it is large and if chance does not explain it. Instances of one patient resemble each other,
so chance is measured between patients. Counts under 11 patients are hidden.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.evaluation.intervals import Interval, interval_of, resamples
from patients_like_me.plain_text import is_small
from patients_like_me.records.cohort import KINDS
from patients_like_me.runs.predictions import ids_of
from patients_like_me.tasks.instances import Instances

Floats = npt.NDArray[np.float64]

#: A code has moved if its rate differs by this many standard deviations of a single patient's having it.
MOVED: Final = 0.2
#: Codes that fewer of both sides have are not compared.
FEWEST_RATE: Final = 0.01
#: The chance that any code of all those compared is said to have moved where none has.
FALSE_ALARM: Final = 0.01
REPLICATES: Final = 200


@dataclass(frozen=True)
class CodeShift:
    """A code whose rate has moved: its rates among the references and now; None where too few patients have it."""

    kind: str
    code: str
    name: str
    in_bank: float | None
    now: float | None
    difference: float

    def as_json(self) -> dict[str, Any]:
        """Return the shift as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class CodeDrift:
    """The codes that moved, the largest difference first, and what they make up of all codes."""

    moved: tuple[CodeShift, ...]
    share: float
    unknown: float
    compared: int


def code_drift(bank: Instances, now: Instances) -> CodeDrift:
    """Compare the rates of all codes that instances may see.

    ``share`` is the part of all codes, by their rates, that belongs to codes that moved; ``unknown`` the part of the
    codes now that no reference has.
    """
    seen = [_seen(each) for each in (bank, now)]
    columns = {key: place for place, key in enumerate(sorted({key for each in seen for key in each.keys}))}
    rates = [_rates(each, columns) for each in seen]
    (first, first_size, having_before), (second, second_size, having_now) = rates
    spread = np.sqrt(np.maximum((first * (1 - first) + second * (1 - second)) / 2, 1e-12))
    difference = np.abs(second - first) / spread
    usual = np.maximum(first, second) >= FEWEST_RATE
    # The error where nothing has moved: one rate on both sides, and the instances of a patient all alike.
    pooled = (first / first_size + second / second_size) / (1 / first_size + 1 / second_size)
    error = np.sqrt(pooled * (1 - pooled) * (first_size + second_size))
    moved = usual & (difference >= MOVED) & (np.abs(second - first) > _bound(int(usual.sum())) * error)
    weight = first + second
    people = [int(each.patients.max(initial=-1)) + 1 for each in seen]

    def shown(rate: float, having: int, everyone: int) -> float | None:
        return None if is_small(having) or is_small(everyone - having) else rate

    names = {(kind, code): name for each in (bank, now) for kind, code, name in _names(each)}
    keys = list(columns)
    shifts = []
    for place in sorted(np.flatnonzero(moved).tolist(), key=lambda place: (-difference[place], keys[place])):
        kind, code = keys[place]
        shifts.append(
            CodeShift(
                kind,
                code,
                names.get((kind, code)) or code,
                shown(float(first[place]), int(having_before[place]), people[0]),
                shown(float(second[place]), int(having_now[place]), people[1]),
                float(difference[place]),
            )
        )
    total = float(weight[usual].sum())
    unknown = float(second[first == 0].sum() / second.sum()) if second.sum() else 0.0
    return CodeDrift(tuple(shifts), float(weight[moved].sum()) / total if total else 0.0, unknown, int(usual.sum()))


def share_with_interval(holds: npt.NDArray[np.bool_], patients: npt.NDArray[Any]) -> tuple[float, Interval | None]:
    """Return the share of instances for which something holds, with its interval over patients.

    >>> share, interval = share_with_interval(np.array([True, False] * 20), np.arange(40))
    >>> share, interval.low < 0.5 < interval.high
    (0.5, True)
    """
    _, number = np.unique(patients, return_inverse=True)
    people = int(number.max(initial=-1)) + 1
    if people < 2:
        return float(holds.mean()) if len(holds) else 0.0, None
    held, all_of_them = np.bincount(number, holds, people), np.bincount(number, minlength=people).astype(np.float64)
    values = np.concatenate([(weights @ held) / (weights @ all_of_them) for weights in resamples(people, REPLICATES)])
    return float(holds.mean()), interval_of(values)


def last_of_each(instances: Instances) -> npt.NDArray[np.int64]:
    """Return the rows of each patient's last instance."""
    subjects = ids_of(instances)["subject_id"].to_list()
    return np.array(sorted({name: row for row, name in enumerate(subjects)}.values()), dtype=np.int64)


@dataclass(frozen=True)
class _Seen:
    """Which instance has which code, once each, and the patient of every instance."""

    keys: list[tuple[str, str]]
    rows: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int64]
    patients: npt.NDArray[np.int64]


def _seen(instances: Instances) -> _Seen:
    frames = [
        instances.inputs(kind).select("instance", "code").unique().with_columns(pl.lit(kind).alias("kind"))
        for kind in KINDS
    ]
    frame = pl.concat(frames)
    pairs = frame.select("kind", "code").unique().sort("kind", "code").with_row_index("place")
    placed = frame.join(pairs, on=["kind", "code"], how="left")
    _, patients = np.unique(ids_of(instances)["subject_id"].to_numpy().astype(str), return_inverse=True)
    return _Seen(
        [(kind, code) for kind, code in pairs.select("kind", "code").iter_rows()],
        placed["instance"].to_numpy().astype(np.int64),
        placed["place"].to_numpy().astype(np.int64),
        patients.astype(np.int64),
    )


def _rates(seen: _Seen, columns: dict[tuple[str, str], int]) -> tuple[Floats, float, npt.NDArray[np.int64]]:
    """Return the rate of every code, 1 over the number of patients that the instances count for, and who has it.

    n instances count for n^2 / sum_i n_i^2 patients, n_i being those of patient i.
    """
    from scipy.sparse import csr_array

    instances, people = len(seen.patients), int(seen.patients.max(initial=-1)) + 1
    places = np.array([columns[key] for key in seen.keys], np.int64)[seen.codes] if len(seen.codes) else seen.codes
    counts = csr_array((np.ones(len(places)), (seen.patients[seen.rows], places)), shape=(people, len(columns)))
    counts.sum_duplicates()
    rates = np.asarray(counts.sum(axis=0)).ravel() / max(instances, 1)
    sizes = np.bincount(seen.patients, minlength=people).astype(np.float64)
    having = np.asarray((counts > 0).sum(axis=0)).ravel().astype(np.int64)
    return rates, float((sizes**2).sum() / max(instances, 1) ** 2), having


def _bound(tests: int) -> float:
    from scipy.stats import norm

    return float(norm.ppf(1 - FALSE_ALARM / (2 * max(tests, 1))))


def _names(instances: Instances) -> list[tuple[str, str, str]]:
    return list(instances.cohort.vocabulary.select("kind", "code", "name").iter_rows())
