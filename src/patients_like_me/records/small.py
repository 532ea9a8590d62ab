"""Small cohorts from plain rows, for examples, tests and trying things out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import polars as pl

from patients_like_me.records.cohort import (
    CODE_COLUMNS,
    DEMOGRAPHICS,
    KINDS,
    LABEL_COLUMNS,
    PATIENT_COLUMNS,
    PLACES,
    TABLE_OF_KIND,
    TIME,
    VISIT_COLUMNS,
    VOCABULARY_COLUMNS,
    Cohort,
)
from patients_like_me.records.visit_order import ordered_visits, with_next_admission


def cohort_of(
    visits: Sequence[Mapping[str, Any]],
    *,
    deaths: Mapping[str, datetime] | None = None,
    labels: Sequence[tuple[str, str, str]] = (),
) -> Cohort:
    """Make a cohort from one mapping per visit.

    Keys: ``subject_id`` and ``visit_id``; optional ``admission_time``, ``discharge_time``, ``order``, ``age``,
    ``died``, the demographics, ``site``, ``unit``, and ``diagnoses``, ``procedures``, ``medications`` as lists of
    codes, or of (code, time). ``labels`` are (visit_id, task, value).

    >>> cohort = cohort_of([{"subject_id": "p", "visit_id": "v", "order": 0, "diagnoses": ["108", "49"]}])
    >>> cohort.statistics()["conditions_per_patient"]
    2.0
    """
    defaults: dict[str, Any] = {
        "admission_time": None,
        "discharge_time": None,
        "order": None,
        "age": None,
        "died": False,
        **dict.fromkeys((*DEMOGRAPHICS, *PLACES)),
    }
    rows = [
        {key: visit.get(key, default) for key, default in {"subject_id": None, "visit_id": None, **defaults}.items()}
        for visit in visits
    ]
    schema: dict[str, pl.DataType] = {**VISIT_COLUMNS, "subject_id": pl.String(), "order": pl.Int64()}
    frame = pl.DataFrame(rows, schema={key: schema[key] for key in ["subject_id", "visit_id", *defaults]})
    ordered = ordered_visits(with_next_admission(frame))
    subjects = ordered.select("subject_id").unique(maintain_order=True).with_row_index("subject")
    patients = subjects.with_columns(
        pl.lit(None, dtype=pl.String).alias("sex"),
        pl.col("subject_id").replace_strict(dict(deaths or {}), default=None, return_dtype=TIME).alias("death_time"),
    )
    number = dict(ordered.select("visit_id", "visit").iter_rows())
    codes = {
        kind: pl.DataFrame(
            sorted(
                {
                    (number[visit["visit_id"]], *((entry, None) if isinstance(entry, str) else entry))
                    for visit in visits
                    for entry in visit.get(TABLE_OF_KIND[kind], ())
                },
                key=lambda row: (row[0], row[1]),
            ),
            schema=CODE_COLUMNS,
            orient="row",
        )
        for kind in KINDS
    }
    vocabulary = sorted({(kind, code) for kind in KINDS for code in codes[kind]["code"].to_list()})
    return Cohort(
        patients=patients.select(list(PATIENT_COLUMNS)).cast(PATIENT_COLUMNS),
        visits=ordered.join(subjects, on="subject_id", maintain_order="left")
        .select(list(VISIT_COLUMNS))
        .cast(VISIT_COLUMNS),
        codes=codes,
        vocabulary=pl.DataFrame(
            [(kind, code, f"{kind} {code}", None) for kind, code in vocabulary],
            schema=VOCABULARY_COLUMNS,
            orient="row",
        ),
        labels=pl.DataFrame(
            [(number[visit], task, value) for visit, task, value in labels],
            schema=LABEL_COLUMNS,
            orient="row",
        ).sort("visit", "task", "value"),
        source="rows",
    )
