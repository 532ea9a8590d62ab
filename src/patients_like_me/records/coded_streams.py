"""The event streams that hospital sources share: ICD diagnoses and procedures to CCS, drugs to ATC-3."""

from __future__ import annotations

from functools import partial
from typing import Literal

import polars as pl

from patients_like_me.codes.atc import all_atc3_codes, anatomical_group, atc3_name
from patients_like_me.codes.ccs import ccs_categories, map_icd
from patients_like_me.codes.medications import map_medications
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import VOCABULARY_COLUMNS
from patients_like_me.records.source_files import SourceTable
from patients_like_me.records.source_records import EventStream

_SYSTEMS = {
    ("diagnosis", 9): "ICD-9-CM",
    ("diagnosis", 10): "ICD-10-CM",
    ("procedure", 9): "ICD-9 procedures",
    ("procedure", 10): "ICD-10-PCS",
}


def icd_stream(
    kind: Literal["diagnosis", "procedure"],
    table: SourceTable,
    store: CodeStore,
    *,
    version_column: str = "icd_version",
) -> EventStream:
    """Stream ICD-coded events; the key is (version, code), since some codes are valid in both versions."""
    return EventStream(
        kind=kind,
        table=table,
        keys=("icd_version", "icd_code"),
        map_keys=partial(_map_icd_keys, kind, table, store, version_column),
        map_name=pl.concat_str(
            pl.lit(f"{kind} "),
            pl.col("icd_version").replace_strict(
                {version: system for (of, version), system in _SYSTEMS.items() if of == kind},
                return_dtype=pl.String,
            ),
            pl.lit(" to CCS"),
        ),
        describe_key=pl.col("icd_code").fill_null("(blank)"),
    )


def drug_stream(table: SourceTable, store: CodeStore) -> EventStream:
    """Stream drug orders; the key is (NDC, drug name): the NDC chain answers first, the name where it cannot."""
    return EventStream(
        kind="medication",
        table=table,
        keys=("ndc", "drug"),
        map_keys=lambda keys: map_medications(keys, store).rename({"atc3": "codes"}),
        map_name=pl.lit("medication NDC or name to ATC-3"),
        describe_key=pl.concat_str(
            pl.col("drug").fill_null("(no name)"),
            pl.when(pl.col("ndc").is_null()).then(pl.lit("")).otherwise(pl.lit(" [NDC ") + pl.col("ndc") + "]"),
        ),
    )


def standard_vocabulary() -> pl.DataFrame:
    """Return the names and chapters of all CCS categories and ATC-3 codes."""
    categories = [
        ccs_categories(kind).select(
            pl.lit(kind).alias("kind"),
            pl.col("ccs").alias("code"),
            "name",
            pl.col("chapter_name").alias("chapter"),
        )
        for kind in ("diagnosis", "procedure")
    ]
    drugs = pl.DataFrame(
        [("medication", code, atc3_name(code), anatomical_group(code)) for code in all_atc3_codes()],
        schema=VOCABULARY_COLUMNS,
        orient="row",
    )
    return pl.concat([*categories, drugs])


def _map_icd_keys(
    kind: Literal["diagnosis", "procedure"],
    table: SourceTable,
    store: CodeStore,
    version_column: str,
    keys: pl.DataFrame,
) -> pl.DataFrame:
    unknown = (~pl.col("icd_version").is_in([9, 10])).fill_null(True)
    if keys.filter(unknown).height:
        row, version = table.row_and_value(unknown, "icd_version")
        raise PlmError(
            f"'{table.path}', row {row}: unknown ICD version {'(blank)' if version is None else version} in column "
            f"'{version_column}'",
            remedy="only 9 and 10 are known: correct the value",
        )
    mapped = map_icd(keys, kind, store)
    return mapped.with_columns(
        pl.when(pl.col("ccs").is_null())
        .then(pl.lit([], dtype=pl.List(pl.String)))
        .otherwise(pl.concat_list("ccs"))
        .alias("codes")
    ).drop("ccs")
