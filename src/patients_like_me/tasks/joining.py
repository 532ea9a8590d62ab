"""Instances of two cohorts as one: for pages that show new patients, or additions to a bank, beside the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from patients_like_me.records.cohort import KINDS, Cohort
from patients_like_me.tasks.instances import Instances, Rows


def only(instances: Instances, rows: Rows) -> Instances:
    """Return some of the instances, in the order of ``rows``, as instances of their own; what each may see stays."""
    frame = instances.frame[rows.tolist()].drop("instance").with_row_index("instance")
    return replace(instances, frame=frame.select(instances.frame.columns), labels=instances.labels[rows])


def followed_by(first: Instances, second: Instances, *, same_people: bool = False) -> Instances:
    """Return instances followed by others, in one cohort.

    With ``same_people`` equal ids in both cohorts are one patient; else each cohort has patients of its own.
    """
    ours, theirs = first.cohort, second.cohort
    subject = (pl.col("subject") + ours.patients.height).cast(pl.UInt32)
    if same_people:
        known = dict(zip(ours.patients["subject_id"].to_list(), ours.patients["subject"].to_list(), strict=True))
        numbers = {
            number: known.get(name, number + ours.patients.height)
            for name, number in zip(theirs.patients["subject_id"], theirs.patients["subject"], strict=True)
        }
        subject = pl.col("subject").replace_strict(numbers, return_dtype=pl.UInt32)
    added = second.frame.with_columns(
        (pl.col("instance") + len(first)).cast(pl.UInt32),
        *(_shifted(name, ours.visits.height) for name in ("visit", "first_visit")),
        subject,
    )
    return replace(
        first,
        cohort=joined_cohorts(ours, theirs),
        frame=pl.concat([first.frame, added.select(first.frame.columns)], how="vertical_relaxed"),
        labels=np.concatenate([first.labels, second.labels]),
    )


def joined_cohorts(first: Cohort, second: Cohort) -> Cohort:
    """Return the patients of two cohorts in one, those of the second last; it keeps the identity of the first."""
    visits, patients = first.visits.height, first.patients.height
    known = second.vocabulary.select("kind", "code")
    return replace(
        first,
        patients=pl.concat([first.patients, second.patients.with_columns(_shifted("subject", patients))]),
        visits=pl.concat(
            [first.visits, second.visits.with_columns(_shifted("visit", visits), _shifted("subject", patients))]
        ),
        codes={
            kind: pl.concat([first.codes[kind], second.codes[kind].with_columns(_shifted("visit", visits))])
            for kind in KINDS
        },
        # Given labels of earlier visits are what the last answer is read from.
        labels=pl.concat([first.labels, second.labels.with_columns(_shifted("visit", visits))]),
        # A changed newcomer is embedded again: its text must use the names with which it was predicted.
        vocabulary=pl.concat([second.vocabulary, first.vocabulary.join(known, on=["kind", "code"], how="anti")]),
        unordered=first.unordered or second.unordered,
        folder=None,
    )


def _shifted(name: str, places: int) -> pl.Expr:
    return (pl.col(name) + places).cast(pl.UInt32)
