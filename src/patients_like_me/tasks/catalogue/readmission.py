"""Readmission: is the patient admitted again within some days (in the paper 15)?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import polars as pl
from pydantic import Field

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.tasks.kinds import BINARY
from patients_like_me.tasks.labels import given_values, numbers_given, with_given
from patients_like_me.tasks.task import GivenNumbers, Task, TaskSettings, Words

_SUCCESSORS_ONLY = (
    "Only visits that have a successor are instances, as in the paper: whether there will be one is not known "
    "at discharge. Use population 'discharged_alive' for a deployable estimate."
)


class ReadmissionSettings(TaskSettings):
    """Which admissions count as readmissions, and of which visits."""

    clock: Literal["admission", "discharge"] = Field(
        "admission", description="count the days from the admission (the paper) or from the discharge"
    )
    window_days: float = Field(
        15, gt=0, le=36_500, allow_inf_nan=False, description="days within which a next admission is a readmission"
    )
    population: Literal["with_successor", "discharged_alive"] = Field(
        "with_successor",
        description=(
            "visits that have a successor (the paper), or every visit discharged alive, "
            "a last one counting as not readmitted"
        ),
    )


def words(settings: ReadmissionSettings) -> Words:
    """Say what is predicted under these settings."""
    days = f"{settings.window_days:g} days"
    successors_only = settings.population == "with_successor"
    population = "visits that have a successor" if successors_only else "every visit discharged alive"
    return Words(
        title=f"is the patient admitted again within {days}?",
        label=f"1 if the next admission is within {days} of this visit's {settings.clock}, else 0; {population}",
        question=(
            f"Predict whether the patient will be readmitted within {days} after the current visit. Choose exactly one "
            f"class from {{0,1}}, where 0 = no readmission within {days} and 1 = readmission within {days}."
        ),
        answer="A single class label in {0,1}.",
        about=f"readmission within {days}",
        outcomes=("not readmitted", f"readmitted within {days}"),
        happened="were readmitted",
        cautions=(_SUCCESSORS_ONLY,) if successors_only else (),
    )


def labels(cohort: Cohort, settings: ReadmissionSettings) -> pl.DataFrame:
    """Label visits 1 where the next admission follows within the window, else 0.

    The clock starts at the admission (the paper) or at the discharge of the visit; a visit whose clock cannot be
    read (no dates) has no computed label. In the population ``with_successor`` only visits with a later visit
    count; in ``discharged_alive`` a last visit counts as not readmitted, and a visit in which the patient died does not
    count, whether its label was computed or given.
    """
    if cohort.unordered and given_values(cohort, TASK.name).is_empty():
        raise PlmError(
            f"readmission cannot be computed for this cohort: {cohort.unordered}",
            remedy="choose another task, or give readmission labels of your own",
        )
    visits = cohort.visits.with_columns(pl.col("next_admission_time").is_not_null().alias("has_successor"))
    start = pl.col("admission_time" if settings.clock == "admission" else "discharge_time")
    gap = pl.col("next_admission_time") - start
    within = (gap <= pl.duration(microseconds=int(settings.window_days * 86_400_000_000))).cast(pl.Int64)
    labelled = visits.with_columns(
        pl.when(pl.col("has_successor")).then(within).otherwise(pl.lit(0, dtype=pl.Int64)).alias("label")
    )
    if settings.population == "with_successor":
        labelled = labelled.filter(pl.col("has_successor"))
    else:
        labelled = labelled.filter(pl.col("has_successor") | (~pl.col("died") & start.is_not_null()))
    computed = labelled.filter(pl.col("label").is_not_null()).select("visit", "label")
    given = numbers_given(cohort, TASK)
    if settings.population == "discharged_alive":
        alive = visits.filter(pl.col("has_successor") | ~pl.col("died").fill_null(False))
        given = given.join(alive.select("visit"), on="visit", how="semi", maintain_order="left")
    return with_given(computed, given.select("visit", pl.col("number").cast(pl.Int64).alias("label")))


def recomputed(visit: Mapping[str, Any], settings: ReadmissionSettings) -> int:
    """Return the label of one visit from its times."""
    following = visit["next_admission_time"]
    if following is None:
        return 0
    start = visit["admission_time"] if settings.clock == "admission" else visit["discharge_time"]
    return int((following - start).total_seconds() <= settings.window_days * 86_400)


TASK = Task(
    name="readmission",
    kind=BINARY,
    predicted_at="discharge",
    current_inputs=("diagnosis", "procedure", "medication"),
    # The diagnoses of a stay are known at its discharge, although their codes are entered some days later.
    known_inputs=("diagnosis", "procedure", "medication"),
    wording=words,
    labeller=labels,
    settings_class=ReadmissionSettings,
    classes=("no readmission", "readmission"),
    # The visits up to the current one show whether an earlier one was followed by a readmission.
    known_by_next_visit=True,
    rates_by="clock",
    recomputed=recomputed,
    given=GivenNumbers("0 or 1", lambda number: number in (0.0, 1.0)),
    short_title="Readmission",
)
