"""Readmission: is the patient admitted again within 15 days?"""

from __future__ import annotations

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.tasks.labels import given_values, numbers_given, with_given
from patients_like_me.tasks.task import Task, TaskSettings


def readmission_labels(cohort: Cohort, settings: TaskSettings) -> pl.DataFrame:
    """Label visits 1 where the next admission follows within the window, else 0.

    The clock starts at the admission (the paper) or at the discharge of the visit; a visit whose clock cannot be
    read (no dates) has no computed label. In the population ``with_successor`` only visits with a later visit
    count; in ``discharged_alive`` a last visit counts as not readmitted, unless the patient died in it.
    """
    if cohort.unordered and given_values(cohort, "readmission").is_empty():
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
    given = numbers_given(cohort, "readmission", meaning="0 or 1")
    if given.filter(~pl.col("number").is_in([0.0, 1.0])).height:
        raise PlmError("the labels table gives a readmission other than 0 or 1", remedy="correct the value")
    return with_given(computed, given.select("visit", pl.col("number").cast(pl.Int64).alias("label")))


READMISSION = Task(
    name="readmission",
    title="is the patient admitted again within 15 days?",
    kind="binary",
    label=(
        "1 if the next visit's admission lies within 15 days of this visit's admission (clock 'admission', the "
        "paper) or discharge (clock 'discharge'), else 0; visits that have a successor (the paper), or every visit "
        "discharged alive"
    ),
    predicted_at="discharge",
    current_inputs=("diagnosis", "procedure", "medication"),
    # The diagnoses of a stay are known at its discharge, although their codes are entered some days later.
    known_inputs=("diagnosis", "procedure", "medication"),
    metrics=("auprc", "auroc"),
    question="Will this patient be admitted to hospital again within {window} days of the current visit?",
    answer="Answer with one class: 1 for a new admission within {window} days, 0 for none.",
    labeller=readmission_labels,
    classes=("no readmission", "readmission"),
)
