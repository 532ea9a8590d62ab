"""Turn the public diabetes records (UCI, 130 US hospitals, 1999-2008) into own tables for ``plm prepare tables``.

The file has no dates: the encounters of a patient are ordered by their ids, and the labels table carries what dates
would have given (readmission within 30 days, days in hospital). Each drug column is a medication of its own. ICD-9
codes are mostly cut to three digits; lost leading zeros are put back.

    python examples/diabetes130.py diabetic_data.csv.gz --out diabetes [--patients 2000]
    plm prepare tables diabetes --out cohort
    plm audit cohort --task readmission --set task.window_days=30
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import polars as pl

from patients_like_me.files import atomic_folder

DRUGS = [
    "metformin",
    "repaglinide",
    "nateglinide",
    "chlorpropamide",
    "glimepiride",
    "acetohexamide",
    "glipizide",
    "glyburide",
    "tolbutamide",
    "pioglitazone",
    "rosiglitazone",
    "acarbose",
    "miglitol",
    "troglitazone",
    "tolazamide",
    "insulin",
    "glyburide-metformin",
    "glipizide-metformin",
    "glimepiride-pioglitazone",
    "metformin-rosiglitazone",
    "metformin-pioglitazone",
]
DIED = ("11", "19", "20", "21")


def own_tables(records: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the tables visits, events and labels of the raw records (all columns as text)."""
    records = records.with_columns(
        pl.when(pl.col(pl.String) == "?").then(None).otherwise(pl.col(pl.String)).name.keep()
    )
    key = {"subject_id": pl.col("patient_nbr"), "visit_id": pl.col("encounter_id")}
    visits = records.select(
        **key,
        order=pl.col("encounter_id").cast(pl.Int64),
        sex=pl.col("gender"),
        age=pl.col("age").str.extract(r"\[(\d+)-").cast(pl.Int32) + 5,
        died=pl.col("discharge_disposition_id").is_in(DIED).cast(pl.Int8),
        insurance=pl.col("payer_code"),
        ethnicity=pl.col("race"),
    )
    diagnoses = (
        records.select(**key, one="diag_1", two="diag_2", three="diag_3")
        .unpivot(index=["subject_id", "visit_id"], value_name="code")
        .drop_nulls("code")
        .select(
            "subject_id",
            "visit_id",
            pl.lit("diagnosis/icd9").alias("kind"),
            pl.col("code").str.replace(r"^(\d)(\.|$)", "00${1}${2}").str.replace(r"^(\d\d)(\.|$)", "0${1}${2}"),
        )
    )
    drugs = (
        records.select(**key, **{drug: pl.col(drug) for drug in DRUGS})
        .unpivot(index=["subject_id", "visit_id"], variable_name="code")
        .filter(pl.col("value") != "No")
        .select("subject_id", "visit_id", pl.lit("medication/own").alias("kind"), "code")
    )
    readmission = records.select(
        "encounter_id", (pl.col("readmitted") == "<30").cast(pl.Int8).cast(pl.String).alias("value")
    )
    stay = records.select("encounter_id", pl.col("time_in_hospital").alias("value"))
    labels = pl.concat(
        [
            table.select(pl.col("encounter_id").alias("visit_id"), pl.lit(task).alias("task"), "value")
            for task, table in (("readmission", readmission), ("length_of_stay", stay))
        ]
    )
    return {"visits": visits, "events": pl.concat([diagnoses, drugs]), "labels": labels}


def main() -> None:
    """Read the arguments and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="diabetic_data.csv or .csv.gz")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--patients", type=int, help="keep this many patients, drawn at random; default: all")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw")
    arguments = parser.parse_args()
    records = pl.read_csv(arguments.file, infer_schema=False)
    if arguments.patients is not None:
        patients = np.sort(records["patient_nbr"].unique().to_numpy())
        chosen = np.random.default_rng(arguments.seed).choice(patients, arguments.patients, replace=False)
        records = records.filter(pl.col("patient_nbr").is_in(chosen.tolist()))
    with atomic_folder(arguments.out) as folder:
        for name, table in own_tables(records).items():
            table.write_parquet(folder / f"{name}.parquet")
    sys.stdout.write(f"{records['patient_nbr'].n_unique():,} patients, {records.height:,} visits: {arguments.out}\n")


if __name__ == "__main__":
    main()
