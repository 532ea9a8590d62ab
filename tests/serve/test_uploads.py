"""Own tables and pasted rows."""

from __future__ import annotations

import gzip
import io
from tempfile import gettempdir
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from patients_like_me.serve.parquet_uploads import UnfitParquetError, sound_parquet
from patients_like_me.serve.problems import FieldProblems
from patients_like_me.serve.uploads import cohort_of_files, pasted_newcomer

VISITS = b"subject_id,visit_id,order,age\na,v1,1,70\na,v2,2,71\nb,v3,1,50\n"
EVENTS = b"visit_id,kind,code\nv1,diagnosis/own,sepsis\nv3,diagnosis,I50.9\nv3,diagnosis,nonsense\n"


def test_tables_become_patients(served: Any) -> None:
    names = served.state.add_tables(
        {"visits": VISITS, "events": EVENTS}, names={"visits": "my visits.CSV", "events": "e.csv"}
    )

    assert len(names) == 2
    assert served.state.patient(names[0]).row.about == "sex not recorded, 71 years, 2 visits"
    # What was left out of one patient's record is on no other page.
    assert served.state.notes(names[0]) == ()
    assert "'nonsense'" in served.state.notes(names[1])[0]


def test_what_is_left_out_of_all_tables_is_said_on_every_page(served: Any) -> None:
    events = EVENTS.replace(b"nonsense", b"I10") + b"V1,diagnosis,I10\n"
    names = served.state.add_tables(
        {"visits": VISITS, "events": events}, names=dict.fromkeys(("visits", "events"), "x.csv")
    )
    for name in names:
        assert served.state.notes(name) == ("1 row of the table events belongs to no visit and is left out",)


@pytest.mark.parametrize(
    ("contents", "name", "field", "words"),
    [
        ({"visits": VISITS}, "v.csv", "events", "needed"),
        ({"visits": VISITS, "events": EVENTS, "labels": b""}, "v.csv", "labels", "no such table"),
        ({"visits": VISITS, "events": EVENTS}, "v.xlsx", "visits", "must end in"),
        (
            {"visits": b"subject_id,visit_id,age\na,v1,999\n", "events": EVENTS},
            "v.csv",
            "visits",
            "the table visits, row",
        ),
        ({"visits": VISITS, "events": b"visit_id,kind,code\nv1,disease,x\n"}, "v.csv", "events", "the table events"),
        (
            {"visits": VISITS.decode().encode("utf-16"), "events": EVENTS},
            "v.csv",
            "visits",
            "the table visits looks like UTF-16",
        ),
    ],
)
def test_a_wrong_table_is_named_without_its_path(contents: Any, name: str, field: str, words: str) -> None:
    with pytest.raises(FieldProblems) as refused:
        cohort_of_files(contents, dict.fromkeys(contents, name))

    (problem,) = refused.value.fields
    assert problem.path == field
    assert words in problem.message
    assert gettempdir() not in problem.message


def test_a_small_file_that_unpacks_to_a_large_one_is_refused_before_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patients_like_me.serve.uploads.MOST_UNPACKED", 2**20)
    # One value, 10 million times, in a few kilobytes.
    column = io.BytesIO()
    pl.DataFrame({"visit_id": pl.repeat("v1", 10_000_000, eager=True)}).write_parquet(column)
    packed = {".csv.gz": gzip.compress(EVENTS + b"\n" * 2**21), ".parquet": column.getvalue()}
    for ending, content in packed.items():
        assert len(content) < 2**20
        with pytest.raises(FieldProblems, match="unpacks to more than 1 MiB") as refused:
            cohort_of_files({"visits": VISITS, "events": content}, {"visits": "v.csv", "events": f"e{ending}"})
        assert refused.value.fields[0].path == "events"
        with pytest.raises(FieldProblems, match="cannot be unpacked"):
            cohort_of_files({"visits": VISITS, "events": EVENTS}, {"visits": "v.csv", "events": f"e{ending}"})


def _as_parquet(**columns: Any) -> bytes:
    written = io.BytesIO()
    pq.write_table(pa.table(columns), written, compression="none")
    return written.getvalue()


def test_a_damaged_parquet_file_is_refused_or_read_and_never_ends_the_process() -> None:
    whole = _as_parquet(visit_id=["v1", "v2"], code=["I10", "I50.9"])
    refused = 0
    for place in range(4, len(whole) - 4, 5):
        damaged = whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]
        try:
            sound = sound_parquet(damaged, most_bytes=2**20, longest_text=200)
        except UnfitParquetError:
            refused += 1
            continue
        # What passes can be handed to a reader that trusts it.
        assert pl.read_parquet(io.BytesIO(sound)).height == 2
    assert refused > 10


def test_texts_that_are_coded_in_the_file_are_counted_as_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patients_like_me.serve.uploads.MOST_UNPACKED", 2**20)
    repeated = _as_parquet(visit_id=["v" * 150] * 20_000)
    long = _as_parquet(visit_id=["v" * 201] * 3)
    assert len(repeated) < 10_000
    for content, words in ((repeated, "unpacks to more than 1 MiB"), (long, "column 1 has a text of more than 200")):
        with pytest.raises(FieldProblems, match=words):
            cohort_of_files({"visits": VISITS, "events": content}, {"visits": "v.csv", "events": "e.parquet"})


def test_a_csv_with_a_lone_carriage_return_is_refused_in_words() -> None:
    visits = b"subject_id,visit_id,order,sex\nS1,v1,1,F\nS1,v2,2\rF\n"
    with pytest.raises(FieldProblems, match="the table visits, line 3: there is a carriage return"):
        cohort_of_files({"visits": visits, "events": EVENTS}, {"visits": "v.csv", "events": "e.csv"})


def test_a_fault_of_the_reader_is_a_fault_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def panics(*_: Any, **__: Any) -> None:
        raise pl.exceptions.PanicException("smith-4711")

    monkeypatch.setattr("patients_like_me.serve.uploads.prepare", panics)
    with pytest.raises(FieldProblems, match="cannot be read") as refused:
        cohort_of_files({"visits": VISITS, "events": EVENTS}, {"visits": "v.csv", "events": "e.csv"})
    assert "smith" not in str(refused.value)


def test_pasted_rows_become_one_patient(served: Any) -> None:
    text = "kind\tcode\tvisit\nage\t71\nsex\tF\ndiagnosis/own\tsepsis\t1\ndrug/own\theparin\t2\nprocedure/own\tbath\n"
    assert pasted_newcomer(text)[0] == {
        "age": 71,
        "sex": "F",
        "visits": [{"diagnoses": ["own:sepsis"]}, {"medications": ["own:heparin"], "procedures": ["own:bath"]}],
    }
    (name,) = served.state.add_text_table(text)
    assert served.state.patient(name).row.about == "female, 71 years, 2 visits"
    dated, _ = pasted_newcomer("diagnosis;I10;2024-05-02\ndiagnosis;I50.9;2024-01-01")
    assert [visit["admission"] for visit in dated["visits"]] == ["2024-01-01", "2024-05-02"]
    # A comma inside quotes divides nothing, and 01 is 1.
    quoted, _ = pasted_newcomer('diagnosis,I50.9,01\ndrug,"insulin, 2",1')
    assert quoted["visits"] == [{"diagnoses": ["I50.9"], "medications": ["insulin, 2"]}]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", "rows"),
        ("disease,x", "row 1"),
        ("age,1\ndiagnosis", "row 2"),
        ("age,old\ndiagnosis,I10", "row 1"),
        ("age,71\n\ndiagnosis,I10,2024-01-01\ndiagnosis,I50.9,yesterday", "row 4"),
        ("diagnosis,I10,1\ndiagnosis,I50.9,2024-01-01", "row 1"),
        ("diagnosis,I10\ndiagnosis/nosuch,I50.9", "row 2"),
        ("age,71\nage,12\ndiagnosis,I10", "row 2"),
        ('diagnosis,I10\ndrug,"heparin,1', "row 2"),
        ("age," + "9" * 5000 + "\ndiagnosis,I10", "row 1"),
        ("diagnosis,I10," + "9" * 5000, "row 1"),
    ],
)
def test_a_wrong_row_is_named(served: Any, text: str, path: str) -> None:
    with pytest.raises(FieldProblems) as refused:
        served.state.add_text_table(text)
    assert path in [field.path for field in refused.value.fields]
