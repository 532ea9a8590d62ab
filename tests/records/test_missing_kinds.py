"""A kind of code that a cohort lacks is said with its reason: no code map knew its codes, or there were none."""

from __future__ import annotations

from pathlib import Path

from patients_like_me.codes.store import CodeStore
from patients_like_me.records.cohort import NOT_MAPPED, NOT_THERE, Cohort
from patients_like_me.records.prepare import prepare


def test_a_kind_that_was_lost_is_told_from_one_that_was_not_there(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "visits.csv").write_text("subject_id,visit_id,order\np,v,0\n")
    # Without the table of procedures their codes are lost; nobody has a drug.
    (tables / "events.csv").write_text("visit_id,kind,code\nv,diagnosis/own,fever\nv,procedure/icd9,3893\n")
    folder = prepare("tables", tables, tmp_path / "cohort", store=CodeStore(tmp_path / "codes")).folder
    found = Cohort.load(folder)
    assert found.missing_kinds == {"procedure": NOT_MAPPED, "medication": NOT_THERE}
    assert found.codes["diagnosis"].height == 1
