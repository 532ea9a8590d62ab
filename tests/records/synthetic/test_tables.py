"""The written tables have MIMIC-IV's shape and tell a consistent story."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from patients_like_me.records.synthetic.tables import COLUMNS

from .conftest import Written

TIME = r"^2[12]\d\d-\d\d-\d\d \d\d:\d\d:\d\d$"
DATE = r"^2[12]\d\d-\d\d-\d\d$"
FORMS = {
    "patients": {
        "subject_id": r"^1\d{7}$",
        "gender": "^[MF]$",
        "anchor_age": r"^\d\d$",
        "anchor_year": r"^21\d\d$",
        "anchor_year_group": r"^20\d\d - 20\d\d$",
        "dod": DATE,
    },
    "admissions": {
        "hadm_id": r"^2\d{7}$",
        "admittime": TIME,
        "dischtime": TIME,
        "deathtime": TIME,
        "admit_provider_id": r"^P[0-9A-Z]{5}$",
        "edregtime": TIME,
        "edouttime": TIME,
        "hospital_expire_flag": "^[01]$",
    },
    "diagnoses_icd": {"seq_num": r"^\d+$", "icd_code": r"^[A-Z0-9]{3,7}$", "icd_version": "^(9|10)$"},
    "procedures_icd": {"chartdate": DATE, "icd_code": r"^[A-Z0-9]{7}$", "icd_version": "^10$"},
    "prescriptions": {
        "pharmacy_id": r"^\d{7,8}$",
        "poe_id": r"^1\d{7}-\d+$",
        "starttime": TIME,
        "stoptime": TIME,
        "drug_type": "^(MAIN|BASE)$",
        "drug": r"^\S.*\S$",
        "ndc": "^$",
        "gsn": "^$",
    },
}
FOLDED = ("dod", "deathtime", "edregtime", "edouttime", "ndc", "gsn")


def times(table: pl.DataFrame, *columns: str) -> pl.DataFrame:
    return table.with_columns(
        pl.col(column).replace("", None).str.to_datetime("%Y-%m-%d %H:%M:%S") for column in columns
    )


@pytest.mark.parametrize("name", list(COLUMNS))
def test_columns_are_mimics(name: str, shared_data: Path) -> None:
    folder = shared_data / "mimic4_demo" / "hosp"
    found = sorted(folder.glob(f"{name}.csv*"))
    assert tuple(pl.read_csv(found[0], n_rows=1, infer_schema=False).columns) == COLUMNS[name]


@pytest.mark.parametrize("name", list(COLUMNS))
def test_text_forms_are_mimics(name: str, hospital: Written) -> None:
    table = hospital[name]
    assert tuple(table.columns) == COLUMNS[name]
    for column, form in FORMS[name].items():
        values = table[column]
        if column in FOLDED:
            values = values.filter(values != "")
        assert values.str.contains(form).all(), column


@pytest.mark.parametrize("name", ["admission_type", "admission_location", "discharge_location", "race", "route"])
def test_words_are_mimics(name: str, hospital: Written, shared_data: Path) -> None:
    """Most rows carry words that the real demo uses too."""
    table = "prescriptions" if name == "route" else "admissions"
    found = sorted((shared_data / "mimic4_demo" / "hosp").glob(f"{table}.csv*"))
    words = set(pl.read_csv(found[0], infer_schema=False)[name].drop_nulls())
    column = hospital[table][name]
    assert column.filter(column != "").is_in(list(words)).mean() > 0.85


def test_identifiers_are_unique_and_refer_to_each_other(hospital: Written) -> None:
    patients, admissions = hospital["patients"], hospital["admissions"]
    assert patients["subject_id"].is_unique().all()
    assert admissions["hadm_id"].is_unique().all()
    assert set(admissions["subject_id"]) == set(patients["subject_id"])
    pairs = set(admissions.select("subject_id", "hadm_id").iter_rows())
    for name in ("diagnoses_icd", "procedures_icd", "prescriptions"):
        assert set(hospital[name].select("subject_id", "hadm_id").unique().iter_rows()) <= pairs, name
    assert hospital["prescriptions"]["pharmacy_id"].is_unique().all()
    assert hospital["prescriptions"]["poe_id"].is_unique().all()


def test_visits_are_ordered_apart_and_last(hospital: Written) -> None:
    visits = times(hospital["admissions"], "admittime", "dischtime")
    assert (visits["dischtime"] > visits["admittime"]).all()
    following = visits.with_columns(next=pl.col("admittime").shift(-1).over("subject_id")).drop_nulls("next")
    assert (following["next"] > following["dischtime"]).all()


def test_nothing_happens_after_death(hospital: Written) -> None:
    visits = times(hospital["admissions"], "admittime", "dischtime", "deathtime").join(
        hospital["patients"].select("subject_id", pl.col("dod").replace("", None).str.to_date()), on="subject_id"
    )
    assert (visits["hospital_expire_flag"] == "1").equals(visits["deathtime"].is_not_null())
    dead = visits.drop_nulls("deathtime")
    assert 0.008 < dead.height / visits.height < 0.04
    assert (dead["deathtime"] == dead["dischtime"]).all()
    assert (dead["dod"] == dead["deathtime"].dt.date()).all()
    assert set(dead["discharge_location"]) == {"DIED"}
    assert (visits.drop_nulls("dod").select(pl.col("dischtime").dt.date() <= pl.col("dod")).to_series()).all()
    last = visits.group_by("subject_id").agg(pl.col("admittime").max(), pl.col("deathtime").min()).drop_nulls()
    assert (last["admittime"] < last["deathtime"]).all()


def test_events_lie_within_their_visit(hospital: Written) -> None:
    visits = times(hospital["admissions"], "admittime", "dischtime", "edregtime", "edouttime")
    orders = times(hospital["prescriptions"], "starttime", "stoptime").join(visits, on="hadm_id")
    assert (orders["stoptime"] > orders["starttime"]).all()
    assert (orders["starttime"] >= orders["admittime"]).all()
    assert orders.select((pl.col("starttime") <= pl.col("dischtime")).mean()).item() > 0.99
    procedures = hospital["procedures_icd"].with_columns(pl.col("chartdate").str.to_date()).join(visits, on="hadm_id")
    inside = pl.col("chartdate").is_between(pl.col("admittime").dt.date(), pl.col("dischtime").dt.date())
    assert procedures.select(inside.all()).item()
    emergency = visits.drop_nulls("edregtime")
    assert (emergency["edregtime"] < emergency["edouttime"]).all()


def test_sequence_numbers_count_from_one_without_gaps(hospital: Written) -> None:
    for name in ("diagnoses_icd", "procedures_icd"):
        numbers = hospital[name].select("hadm_id", pl.col("seq_num").cast(int)).group_by("hadm_id")
        checked = numbers.agg(low=pl.col("seq_num").min(), high=pl.col("seq_num").max(), rows=pl.len())
        assert (checked["low"] == 1).all()
        assert (checked["high"] == checked["rows"]).all()
    assert hospital["diagnoses_icd"].select("hadm_id", "icd_code").is_unique().all()
    assert set(hospital["diagnoses_icd"]["hadm_id"]) == set(hospital["admissions"]["hadm_id"])


def test_a_visit_has_one_icd_version_and_some_are_old(hospital: Written) -> None:
    versions = hospital["diagnoses_icd"].group_by("hadm_id").agg(pl.col("icd_version").unique())
    assert (versions["icd_version"].list.len() == 1).all()
    old = versions.select((pl.col("icd_version").list.first() == "9").mean()).item()
    assert 0.08 < old < 0.25
    assert hospital.summary.icd9_visits == round(old * hospital.summary.visits)


def test_every_length_of_stay_class_occurs(hospital: Written) -> None:
    visits = times(hospital["admissions"], "admittime", "dischtime")
    days = visits.select((pl.col("dischtime") - pl.col("admittime")).dt.total_minutes() / 1440).to_series()
    classes = np.digitize(days.to_numpy(), [1, 2, 3, 4, 5, 6, 7, 8, 15])
    assert np.bincount(classes, minlength=10).min() > 0.02 * visits.height


def test_ages_and_sexes_are_plausible(hospital: Written) -> None:
    age = hospital["patients"]["anchor_age"].cast(int)
    assert age.min() >= 18
    assert age.max() <= 91
    assert not ((age > 89) & (age < 91)).any()
    assert 0.4 < (hospital["patients"]["gender"] == "F").mean() < 0.6
    insured = hospital["admissions"].join(hospital["patients"], on="subject_id")
    old = pl.col("anchor_age").cast(int) >= 65
    shares = insured.group_by(old).agg((pl.col("insurance") == "Medicare").mean()).sort("anchor_age")
    assert shares["insurance"][1] > 3 * shares["insurance"][0]
