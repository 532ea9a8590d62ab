"""Bags: the inputs of every instance as a sparse row of features, under the same rules as prompts and graphs.

A row holds what a prompt may show and nothing else: the codes of the current visit that the task allows, the codes of
earlier visits, the demographics of the prompt's first line (with ``task.prompt`` brief also age and sex), and the
number of earlier visits; on demand also the hospital and unit of the current visit, known from its first minute.
Which features there are is decided by the training split alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from patients_like_me.records.cohort import DEMOGRAPHICS, KINDS, PLACES
from patients_like_me.tasks.instances import Instances

EARLIER_VISITS = "earlier visits"


class BagSettings(BaseModel):
    """How an instance's codes become features."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    earlier: Literal["presence", "count"] = Field(
        "count", description="codes of earlier visits as 0/1, or as the logarithm of 1 + the visits that have them"
    )
    minimum_instances: int = Field(
        2, ge=1, description="a feature is kept if at least this many training instances have it"
    )
    places: bool = Field(False, description="also the hospital (site) and the unit of the current visit")


@dataclass(frozen=True)
class Bag:
    """One row per instance: a scipy CSR array, and what its columns mean."""

    values: Any
    features: tuple[str, ...]

    def dense(self, rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return some rows and columns as a full matrix."""
        full: npt.NDArray[np.float32] = self.values[rows][:, columns].toarray().astype(np.float32)
        return full


def bag_of(instances: Instances, train: npt.NDArray[np.int64], settings: BagSettings | None = None) -> Bag:
    """Make the bag of all instances; a feature is kept if enough instances of the rows ``train`` have it.

    >>> from patients_like_me.records.small import cohort_of
    >>> from patients_like_me.tasks.instances import build_instances
    >>> from patients_like_me.tasks.registry import find_task
    >>> visits = [{"subject_id": "p", "visit_id": f"v{n}", "order": n, "diagnoses": ["49"]} for n in range(2)]
    >>> cohort = cohort_of(visits, labels=[("v0", "readmission", "1"), ("v1", "readmission", "0")])
    >>> bag = bag_of(build_instances(cohort, find_task("readmission")), np.array([0, 1]))
    >>> bag.features[:1], bag.values.toarray()[:, 0].tolist()
    (('current diagnosis 49',), [1.0, 1.0])
    """
    settings = settings or BagSettings()
    entries = _entries(instances, settings)
    features = (
        entries.filter(pl.col("instance").is_in(train.tolist()))
        .group_by("feature")
        .len()
        .filter(pl.col("len") >= settings.minimum_instances)["feature"]
        .sort()
    )
    return _laid_out(entries, features.to_list(), len(instances))


def bag_with(instances: Instances, features: Sequence[str], settings: BagSettings) -> Bag:
    """Make the bag of instances with the features of an earlier one, as for newcomers; other features are left out."""
    return _laid_out(_entries(instances, settings), features, len(instances))


def _entries(instances: Instances, settings: BagSettings) -> pl.DataFrame:
    entries = [_codes(instances, settings), demographics_of(instances), _earlier_visits(instances)]
    return pl.concat([*entries, _places(instances)] if settings.places else entries)


def _laid_out(entries: pl.DataFrame, features: Sequence[str], rows: int) -> Bag:
    from scipy.sparse import csr_array

    numbered = pl.DataFrame({"feature": features}, schema={"feature": pl.String}).with_row_index("column")
    kept = entries.join(numbered, on="feature", how="inner").sort("instance", "column")
    counts = np.bincount(kept["instance"].to_numpy(), minlength=rows)
    values = csr_array(
        (
            kept["value"].to_numpy(),
            kept["column"].to_numpy().astype(np.int32),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        ),
        shape=(rows, len(features)),
    )
    return Bag(values, tuple(features))


def _codes(instances: Instances, settings: BagSettings) -> pl.DataFrame:
    """Return the features of codes, separate for the current visit and all earlier ones: instance, feature, value."""
    now = instances.frame.select("instance", pl.col("visit").alias("now"))
    earlier = pl.col("visit") != pl.col("now")
    frames = []
    for kind in KINDS:
        seen = instances.inputs(kind).join(now, on="instance", how="left")
        place = pl.when(earlier).then(pl.lit("earlier")).otherwise(pl.lit("current"))
        feature = pl.concat_str(place, pl.lit(kind), pl.col("code"), separator=" ").alias("feature")
        frames.append(seen.select("instance", "visit", feature))
    visits = pl.concat(frames).group_by("instance", "feature").agg(pl.col("visit").n_unique())
    # A feature of the current visit counts one visit; it stays 1 whichever way earlier visits are counted.
    several = pl.col("feature").str.starts_with("earlier") & pl.lit(settings.earlier == "count")
    value = pl.when(several).then(pl.col("visit").cast(pl.Float64).log1p()).otherwise(1.0)
    return visits.select("instance", "feature", value.alias("value"))


def demographics_of(instances: Instances) -> pl.DataFrame:
    """Return what the first line of a prompt shows at the current visit, one 0/1 feature per value.

    In the paper's form a missing value is one of the values; the brief form shows what is recorded, and age and sex.
    """
    brief = instances.settings.prompt == "brief"
    now = (
        instances.frame.select("instance", "visit", "subject")
        .join(instances.cohort.visits.select("visit", "age", *DEMOGRAPHICS), on="visit", how="left")
        .join(instances.cohort.patients.select("subject", "sex"), on="subject", how="left")
    )
    fields = ("sex", *DEMOGRAPHICS) if brief else DEMOGRAPHICS
    long = now.unpivot(on=list(fields), index="instance", variable_name="field", value_name="text")
    shown = long.drop_nulls() if brief else long.with_columns(pl.col("text").fill_null("not recorded"))
    text = pl.concat_str(pl.col("field"), pl.col("text").str.to_lowercase(), separator=" = ")
    values = shown.select("instance", text.alias("feature"), pl.lit(1.0).alias("value"))
    return pl.concat([values, _age(now.drop_nulls("age"))]) if brief else values


def _places(instances: Instances) -> pl.DataFrame:
    """Return where the current visit takes place, one 0/1 feature per site and unit; what is not recorded is none."""
    visits = instances.cohort.visits.select("visit", *PLACES)
    now = instances.frame.select("instance", "visit").join(visits, on="visit", how="left")
    long = now.unpivot(on=list(PLACES), index="instance", variable_name="field", value_name="text").drop_nulls()
    text = pl.concat_str("field", "text", separator=" = ")
    return long.select("instance", text.alias("feature"), pl.lit(1.0).alias("value"))


def _age(now: pl.DataFrame) -> pl.DataFrame:
    """Return the age as a number and its decade as a 0/1 feature: a linear model needs the latter."""
    decade = (pl.col("age") // 10 * 10).cast(pl.String)
    # In units of 50 years an age is of the order of 1, so that a penalty treats it as it does the other features.
    number = now.select("instance", pl.lit("age").alias("feature"), (pl.col("age") / 50.0).alias("value"))
    feature = pl.concat_str(pl.lit("age from "), decade).alias("feature")
    return pl.concat([number, now.select("instance", feature, pl.lit(1.0).alias("value"))])


def _earlier_visits(instances: Instances) -> pl.DataFrame:
    counts = instances.history.group_by("instance").len()
    return counts.select(
        "instance",
        pl.lit(EARLIER_VISITS).alias("feature"),
        pl.col("len").cast(pl.Float64).log1p().alias("value"),
    )
