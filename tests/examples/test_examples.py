"""The examples do what their first lines say."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    """Load an example as a module."""
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_the_diabetes_records_become_own_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    diabetes = example("diabetes130")
    common = {"gender": "Female", "race": "?", "payer_code": "MC", "discharge_disposition_id": "1"}
    common |= dict.fromkeys(diabetes.DRUGS, "No")
    rows = [
        {**common, "encounter_id": "20", "patient_nbr": "7", "age": "[70-80)", "diag_1": "8", "diag_2": "250.83",
         "diag_3": "?", "readmitted": "<30", "time_in_hospital": "3", "insulin": "Up"},
        {**common, "encounter_id": "9", "patient_nbr": "7", "age": "[70-80)", "diag_1": "V58", "diag_2": "41",
         "diag_3": "428", "readmitted": ">30", "time_in_hospital": "11", "metformin": "Steady"},
        {**common, "encounter_id": "5", "patient_nbr": "8", "age": "[0-10)", "diag_1": "?", "diag_2": "?",
         "diag_3": "?", "readmitted": "NO", "time_in_hospital": "1", "discharge_disposition_id": "11"},
    ]  # fmt: skip
    source = tmp_path / "diabetic_data.csv"
    pl.DataFrame(rows).write_csv(source)
    monkeypatch.setattr(sys, "argv", ["diabetes130.py", str(source), "--out", str(tmp_path / "tables")])
    diabetes.main()
    assert "2 patients, 3 visits" in capsys.readouterr().out
    visits, events, labels = (
        pl.read_parquet(tmp_path / "tables" / f"{name}.parquet") for name in ("visits", "events", "labels")
    )
    assert visits.sort("order").select("visit_id", "subject_id", "age", "died", "ethnicity").rows() == [
        ("5", "8", 5, 1, None), ("9", "7", 75, 0, None), ("20", "7", 75, 0, None)]  # fmt: skip
    assert set(events.select("visit_id", "kind", "code").rows()) == {
        ("20", "diagnosis/icd9", "008"), ("20", "diagnosis/icd9", "250.83"), ("20", "medication/own", "insulin"),
        ("9", "diagnosis/icd9", "V58"), ("9", "diagnosis/icd9", "041"), ("9", "diagnosis/icd9", "428"),
        ("9", "medication/own", "metformin"),
    }  # fmt: skip
    assert set(labels.filter(task="readmission").select("visit_id", "value").rows()) == {
        ("20", "1"),
        ("9", "0"),
        ("5", "0"),
    }
    assert set(labels.filter(task="length_of_stay").select("visit_id", "value").rows()) == {("20", "3"), ("9", "11"), ("5", "1")}  # fmt: skip
