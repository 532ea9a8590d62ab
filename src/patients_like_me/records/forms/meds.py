"""Write MIMIC-IV's tables as a MEDS dataset, with the codes of the MIMIC-IV extraction and ``hadm_id`` on every event.

Of what the reader needs nothing is lost, so the cohorts of both forms are equal, but that diagnoses, which have no time
in the tables, are dated at the discharge. Shards hold whole subjects.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from patients_like_me.files import atomic_folder, write_json
from patients_like_me.records.cohort import TIME
from patients_like_me.records.forms.form import Form
from patients_like_me.records.forms.mimic4_tables import copy_notice, open_mimic4

SUBJECTS_PER_SHARD: Final = 10_000
_EXTRA: Final = ("hadm_id", "insurance", "language", "marital_status", "race", "ndc")


def write_meds(folder: Path, out: Path) -> None:
    """Write the tables of ``folder`` as a MEDS dataset."""
    tables = {name: table.collect() for name, table in open_mimic4(folder).items()}
    ends = tables["admissions"].select("hadm_id", pl.col("dischtime").alias("time"))
    with atomic_folder(out) as temporary:
        (temporary / "data").mkdir()
        (temporary / "metadata").mkdir()
        subjects = tables["patients"]["subject_id"].sort()
        shards = [subjects[first : first + SUBJECTS_PER_SHARD] for first in range(0, len(subjects), SUBJECTS_PER_SHARD)]
        codes = pl.Series([], dtype=pl.String)
        for number, wanted in enumerate(shards):
            low, high = wanted[0], wanted[-1]
            shard = {name: table.filter(pl.col("subject_id").is_between(low, high)) for name, table in tables.items()}
            events = _events(shard, ends)
            events.write_parquet(temporary / "data" / f"{number}.parquet", compression="zstd", statistics=False)
            codes = pl.concat([codes, events["code"].unique()]).unique()
        pl.DataFrame({"code": codes.sort()}).with_columns(
            pl.lit(None, dtype=pl.String).alias("description"),
            pl.lit(None, dtype=pl.List(pl.String)).alias("parent_codes"),
        ).write_parquet(temporary / "metadata" / "codes.parquet")
        about = {"dataset_name": "MIMIC-IV's tables", "etl_name": "patients-like-me", "meds_version": "0.4.1"}
        write_json(temporary / "metadata" / "dataset.json", about)
        copy_notice(folder, temporary)


def _events(tables: dict[str, pl.DataFrame], ends: pl.DataFrame) -> pl.DataFrame:
    """Return all events of some subjects, sorted by subject and time as MEDS asks."""
    patients, admissions = tables["patients"], tables["admissions"]
    deaths = admissions.group_by("subject_id").agg(pl.col("deathtime").max())
    died = patients.join(deaths, on="subject_id", how="left").with_columns(
        pl.coalesce("deathtime", "dod").alias("time")
    )
    nowhere = pl.lit("UNK")
    by_death = pl.col("hospital_expire_flag").str.strip_chars() == "1"
    place = pl.col("discharge_location").fill_null("UNK").replace("DIED", "UNK")
    icd = pl.format("ICD//{}//{}", "icd_version", "icd_code")
    born = pl.date(pl.col("anchor_year") - pl.col("anchor_age"), 1, 1)
    drugs = tables["prescriptions"]
    frames = [
        patients.select(
            "subject_id", pl.lit(None, TIME).alias("time"), pl.format("GENDER//{}", "gender").alias("code")
        ),
        patients.select("subject_id", born.alias("time"), pl.lit("MEDS_BIRTH").alias("code")),
        died.filter(pl.col("time").is_not_null()).select("subject_id", "time", pl.lit("MEDS_DEATH").alias("code")),
        admissions.select(
            "subject_id",
            pl.col("admittime").alias("time"),
            pl.format(
                "HOSPITAL_ADMISSION//{}//{}",
                pl.col("admission_type").fill_null(nowhere),
                pl.col("admission_location").fill_null(nowhere),
            ).alias("code"),
            *(name for name in _EXTRA if name != "ndc"),
        ),
        admissions.filter(pl.col("dischtime").is_not_null()).select(
            "subject_id",
            pl.col("dischtime").alias("time"),
            pl.format("HOSPITAL_DISCHARGE//{}", pl.when(by_death).then(pl.lit("DIED")).otherwise(place)).alias("code"),
            "hadm_id",
        ),
        tables["diagnoses_icd"]
        .join(ends, on="hadm_id", how="left", maintain_order="left")
        .select("subject_id", "time", pl.format("DIAGNOSIS//{}", icd).alias("code"), "hadm_id"),
        tables["procedures_icd"].select(
            "subject_id", pl.col("chartdate").alias("time"), pl.format("PROCEDURE//{}", icd).alias("code"), "hadm_id"
        ),
        drugs.select(
            "subject_id",
            pl.col("starttime").alias("time"),
            pl.format("MEDICATION//START//{}", pl.col("drug").fill_null("UNK")).alias("code"),
            "hadm_id",
            "ndc",
        ),
    ]
    schema = {
        "subject_id": pl.Int64,
        "time": TIME,
        "code": pl.String,
        **{name: pl.Int64 if name == "hadm_id" else pl.String for name in _EXTRA},
    }
    timed = [frame.with_columns(pl.col("time").cast(TIME)) for frame in frames]
    joined = pl.concat([pl.DataFrame(schema=schema), *timed], how="diagonal")
    return joined.sort("subject_id", "time", nulls_last=False, maintain_order=True)


FORM = Form("meds", "MEDS 0.4", write_meds)
