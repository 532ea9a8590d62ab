"""The stratum of an instance: by number of visits, age, sex, ethnicity, insurance, or references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.predictions import Predictions
from patients_like_me.tasks.task import Split

if TYPE_CHECKING:
    from patients_like_me.runs.run import Run

NOT_RECORDED: Final = "not recorded"
#: Lower bounds of the bands, with the name of each.
VISITS: Final = {1: "1", 2: "2", 3: "3", 4: "4 or more"}
AGES: Final = {0: "under 18", 18: "18 to 44", 45: "45 to 64", 65: "65 to 79", 80: "80 or more"}
REFERENCES: Final = {0: "none", 1: "1 to 4", 5: "5 to 15", 16: "16 to 31", 32: "32 or more"}


@dataclass(frozen=True)
class Dimension:
    """One way to divide instances: the stratum of each, the order of the strata, or why there is none."""

    name: str
    title: str
    strata: tuple[str, ...] = ()
    stratum_of: npt.NDArray[np.str_] | None = None
    unavailable: str | None = None


def banded(values: npt.NDArray[np.float64], bands: dict[int, str]) -> npt.NDArray[np.str_]:
    """Name the band of every number; NaN is not recorded.

    >>> banded(np.array([17.0, 18.0, 80.5, np.nan]), AGES).tolist()
    ['under 18', '18 to 44', '80 or more', 'not recorded']
    """
    bounds, names = list(bands), [*bands.values(), NOT_RECORDED]
    places = np.clip(np.searchsorted(bounds, values, side="right") - 1, 0, len(bounds) - 1)
    return np.array(names)[np.where(np.isnan(values), len(names) - 1, places)]


def named(values: list[str | None]) -> npt.NDArray[np.str_]:
    """Take a recorded text as the stratum, up to a dash: finer origins are mostly too rare to be shown.

    >>> named(["WHITE - RUSSIAN", None, " "]).tolist()
    ['WHITE', 'not recorded', 'not recorded']
    """
    return np.array([(value or "").split(" - ")[0].strip() or NOT_RECORDED for value in values], dtype=np.str_)


def dimensions_of(run: Run, predictions: Predictions, split: Split) -> list[Dimension]:
    """Return every dimension for the predictions of a split, in their order."""
    people = _people(run, predictions)
    found = [
        _in_bands("visits", "Visits so far", people["visits"].cast(pl.Float64).to_numpy(), VISITS),
        _in_bands("age", "Age", people["age"].cast(pl.Float64).to_numpy(), AGES),
    ]
    for column, title in (("sex", "Sex"), ("ethnicity", "Ethnicity"), ("insurance", "Insurance")):
        strata = named(people[column].to_list())
        order = sorted(set(strata.tolist()), key=lambda name: (name == NOT_RECORDED, name))
        found.append(Dimension(column, title, tuple(order), strata))
    return [*found, _references(run, predictions, split)]


def _in_bands(name: str, title: str, values: npt.NDArray[np.float64], bands: dict[int, str]) -> Dimension:
    strata = banded(values, bands)
    present = set(strata.tolist())
    return Dimension(name, title, tuple(band for band in (*bands.values(), NOT_RECORDED) if band in present), strata)


def _people(run: Run, predictions: Predictions) -> pl.DataFrame:
    """Return number of visits, age and the recorded texts of every predicted instance."""
    cohort = run.cohort
    known = (
        run.instances.frame.select(
            "instance_id", "visit", "subject", (pl.col("visit") - pl.col("first_visit") + 1).alias("visits")
        )
        .join(cohort.visits.select("visit", "age", "ethnicity", "insurance"), on="visit", how="left")
        .join(cohort.patients.select("subject", "sex"), on="subject", how="left")
    )
    wanted = pl.DataFrame({"instance_id": predictions.instance_ids}, schema={"instance_id": pl.String})
    people = wanted.join(known, on="instance_id", how="left", maintain_order="left")
    if people["visits"].null_count():
        raise PlmError(
            f"{people['visits'].null_count():,} predicted instances of '{run.folder}' are not in its cohort",
            remedy="give the cohort that the run was trained on with --cohort",
        )
    return people


def _references(run: Run, predictions: Predictions, split: Split) -> Dimension:
    name, title = "references", "References in the graph"
    if not run.uses_graph:
        return Dimension(name, title, unavailable=f"the run '{run.name}' uses no patient graph")
    graph = run.graph_of(split)
    own = run.evaluated(split)
    degree_of = dict(zip(graph.instance_ids[len(graph) - own :], graph.degrees[len(graph) - own :], strict=True))
    degrees = np.array([degree_of[instance] for instance in predictions.instance_ids], dtype=np.float64)
    return _in_bands(name, title, degrees, REFERENCES)
