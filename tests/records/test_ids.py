"""One person has one id: a stated normal form, and refused look-alikes."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.ids import normal_ids
from patients_like_me.records.prepare import prepare


def prepared(folder: Path, store: CodeStore, second: str, *, event: str = "p101", visit: str = "v2") -> Cohort:
    """Prepare two visits, of 'p101' and of an id written as ``second``."""
    folder.mkdir()
    visits = pl.DataFrame(
        {"subject_id": ["p101", second], "visit_id": ["v1", "v2"], "admission_time": ["2150-01-01", "2150-02-01"]}
    )
    visits.write_csv(folder / "visits.csv", quote_style="never" if '"' not in second else "necessary")
    events = {"subject_id": ["p101", event], "visit_id": ["v1", visit], "kind": ["diagnosis"] * 2, "code": ["I10"] * 2}
    pl.DataFrame(events).write_csv(folder / "events.csv")
    return Cohort.load(prepare("tables", folder, folder.parent / "cohort", store=store).folder)


SAME = ["p101 ", " p101", "p101\u00a0", "p101\u200b", "p\u200b101", "\ufeffp101", "\uff5010１".replace("１", "\uff11"), '"p101"', "'p101'", "\u201cp101\u201d"]  # fmt: skip


@pytest.mark.parametrize("written", SAME)
def test_one_person_stays_one(tmp_path: Path, store: CodeStore, written: str) -> None:
    cohort = prepared(tmp_path / "own", store, written)
    assert cohort.patients["subject_id"].to_list() == ["p101"]
    assert cohort.about["notes"][0] == "1 value of 'subject_id' was brought into the normal form of ids"


@pytest.mark.parametrize(
    ("second", "what"),
    [
        ("P101", "upper and lower case"),
        ("p0101", "leading zeros"),
        ("p00101", "leading zeros"),
        ("p101.0", "'.0' at the end"),
        ("P0101", "case, leading zeros and '.0'"),
        ("P101.00", "case, leading zeros and '.0'"),
    ],
)
def test_look_alikes_are_refused_without_their_ids(tmp_path: Path, store: CodeStore, second: str, what: str) -> None:
    with pytest.raises(
        PlmError, match=rf"visits\.csv', row 2 and row 3: two ids in column 'subject_id' .* {what}"
    ) as e:
        prepared(tmp_path / "own", store, second)
    assert "p101" not in str(e.value)
    assert second not in str(e.value)


def test_the_normal_form_holds_for_events_too(tmp_path: Path, store: CodeStore) -> None:
    cohort = prepared(tmp_path / "own", store, "p102", event="p102\u200b", visit="v2\u00a0")
    assert cohort.codes["diagnosis"]["visit"].to_list() == [0, 1]
    assert cohort.about["rows_without_visit"] == {"events.csv": 0}
    with pytest.raises(PlmError, match=r"events\.csv', row 3: this subject_id is not the patient of the visit"):
        prepared(tmp_path / "wrong", store, "p102", event=" p101", visit=" v2")


def test_whole_numbers_lose_their_fraction() -> None:
    assert normal_ids(pl.Series(["12.0", "12.00", "12.5", "12", "x.0", "-3.0"])).to_list() == [
        "12", "12", "12.5", "12", "x.0", "-3",
    ]  # fmt: skip


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=20))
def test_a_normal_id_is_its_own_normal_form(ids: list[str]) -> None:
    once = normal_ids(pl.Series("id", ids))
    assert normal_ids(once).to_list() == once.to_list()


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        *((id_, "was shortened, as 123456789012 becomes") for id_ in ("1.2E+11", "1,23e+12", "9E+15", "1.5e17")),
        *((id_, "is a word for a missing value") for id_ in ("NULL", "NaN", "None", "n/a", "#N/A", " nan ")),
    ],
)
def test_ids_that_an_export_lost_are_refused(tmp_path: Path, store: CodeStore, written: str, sentence: str) -> None:
    """Two patients with such an id would become one."""
    (folder := tmp_path / "own").mkdir()
    visits = {"subject_id": ["p101", written, written], "visit_id": ["v1", "v2", "v3"]}
    pl.DataFrame(visits).write_csv(folder / "visits.csv")
    pl.DataFrame({"visit_id": ["v1"], "kind": ["diagnosis"], "code": ["I10"]}).write_csv(folder / "events.csv")
    with pytest.raises(PlmError, match=rf"row 3: the id in column 'subject_id' {sentence}.* \(2 such rows\)") as caught:
        prepare("tables", folder, tmp_path / "cohort", store=store)
    assert written.strip() not in str(caught.value).replace("NULL or NaN", "")


def test_long_ids_in_a_column_of_fractions_are_refused(tmp_path: Path, store: CodeStore) -> None:
    """A table that was joined with gaps holds its ids as fractions, of which only sixteen digits are kept."""
    (folder := tmp_path / "own").mkdir()
    ids = pl.Series("subject_id", [123456789012345678, 123456789012345679], dtype=pl.Int64).cast(pl.Float64)
    pl.DataFrame([ids, pl.Series("visit_id", ["v1", "v2"])]).write_parquet(folder / "visits.parquet")
    pl.DataFrame({"visit_id": ["v1"], "kind": ["diagnosis"], "code": ["I10"]}).write_csv(folder / "events.csv")
    with pytest.raises(PlmError, match=r"the id in column 'subject_id' was shortened.* \(2 such rows\)"):
        prepare("tables", folder, tmp_path / "cohort", store=store)


@pytest.mark.parametrize("id_", ["12E5", "1E+", "nana", "a1.2E+11", "none-7"])
def test_ids_that_only_look_a_little_so_are_ids(tmp_path: Path, store: CodeStore, id_: str) -> None:
    assert set(prepared(tmp_path / "own", store, id_, event=id_).patients["subject_id"]) == {"p101", id_}
