"""The hospital has the paper's numbers per patient, and the committed scales are those the solver finds."""

from __future__ import annotations

import polars as pl
import pytest

from patients_like_me.codes.drug_names import match_drug_names
from patients_like_me.codes.hcup import IcdTable, packaged_map
from patients_like_me.records.synthetic.calibration import SCALES, solve_scales
from patients_like_me.records.synthetic.syndromes import load_knowledge

from .conftest import Written

PAPER_VISITS, PAPER_CONDITIONS, PAPER_PROCEDURES, PAPER_DRUGS = 1.88, 21.74, 4.70, 43.89
WITHIN = 0.10


def ccs_of(table: IcdTable, version: int) -> pl.DataFrame:
    frame = packaged_map(table)
    assert frame is not None
    return frame.select(icd_code="code", icd_version=pl.lit(str(version)), ccs="ccs")


def test_visits_per_patient(hospital: Written) -> None:
    assert hospital.summary.visits / hospital.summary.patients == pytest.approx(PAPER_VISITS, rel=WITHIN)


def test_conditions_per_patient_and_full_coverage(hospital: Written) -> None:
    ccs = pl.concat([ccs_of("icd10cm_ccs", 10), ccs_of("icd9cm_ccs", 9)])
    mapped = hospital["diagnoses_icd"].join(ccs, on=["icd_code", "icd_version"], how="left")
    assert mapped["ccs"].null_count() == 0
    pairs = mapped.select("hadm_id", "ccs").n_unique()
    assert pairs / hospital.summary.patients == pytest.approx(PAPER_CONDITIONS, rel=WITHIN)


def test_procedures_per_patient_and_full_coverage(hospital: Written) -> None:
    assert set(hospital["procedures_icd"]["icd_version"]) == {"10"}
    ccs = ccs_of("icd10pcs_ccs", 10)
    mapped = hospital["procedures_icd"].join(ccs, on=["icd_code", "icd_version"], how="left")
    assert mapped["ccs"].null_count() == 0
    pairs = mapped.select("hadm_id", "ccs").n_unique()
    assert pairs / hospital.summary.patients == pytest.approx(PAPER_PROCEDURES, rel=WITHIN)


def test_drugs_per_patient(hospital: Written) -> None:
    orders = hospital["prescriptions"].select("hadm_id", "drug").unique()
    names = orders["drug"].unique().to_list()
    matches = [sorted(match.atc3) for match in match_drug_names(names)]
    atc3 = pl.DataFrame({"drug": names, "atc3": matches}).explode("atc3")
    assert atc3["atc3"].null_count() == 0
    pairs = orders.join(atc3, on="drug").select("hadm_id", "atc3").n_unique()
    assert pairs / hospital.summary.patients == pytest.approx(PAPER_DRUGS, rel=WITHIN)


def test_prescription_rows_per_visit_are_those_of_mimic(hospital: Written) -> None:
    assert hospital.summary.prescription_rows / hospital.summary.visits == pytest.approx(35, rel=WITHIN)


def test_the_committed_scales_are_the_solved_ones() -> None:
    solved = solve_scales(load_knowledge(), patients=1_500, rounds=4)
    for kind in ("diagnoses", "procedures", "drugs"):
        assert getattr(solved, kind) == pytest.approx(getattr(SCALES, kind), rel=0.08), kind
