"""OMOP: visits by concept, codes by source or standard concept, and the same cohort from files, DuckDB and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from careless import without_times
from private_postgres import PASSWORD, Server
from tiny_omop import TABLES, VOCABULARY
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.codes.ccs import map_icd
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.records import databases
from patients_like_me.records.cohort import Cohort, Kind
from patients_like_me.records.prepare import prepare
from patients_like_me.tasks.audit import audit, audit_instances
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import all_tasks, find_task
from patients_like_me.tasks.task import TaskSettings

Load = Callable[..., Cohort]
#: The visit concepts that the demo's conversion gave to MIMIC's admissions, but for five that it called outpatient.
DEMO_VISITS = {"visit_concepts": (9201, 262, 8870, 8883, 581385), "merge": "never"}


def write_tables(folder: Path, tables: dict[str, list[str] | None]) -> Path:
    folder.mkdir()
    for name, lines in tables.items():
        if lines is not None:
            (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def load(tmp_path: Path, store: CodeStore) -> Load:
    """Return a function that prepares the made-up folder, some tables changed or left out (None)."""

    def load(reading: dict[str, Any] | None = None, **changed: list[str] | None) -> Cohort:
        folder = write_tables(tmp_path / f"omop{len(list(tmp_path.iterdir()))}", {**TABLES, **changed})
        out = folder.with_name(f"{folder.name}-cohort")
        return Cohort.load(prepare("omop", folder, out, reading=reading, store=store).folder)

    return load


@pytest.fixture
def vocabulary(tmp_path: Path) -> str:
    return str(write_tables(tmp_path / "athena", dict(VOCABULARY)))


def codes_of(cohort: Cohort, kind: str) -> dict[str, list[str]]:
    joined = cohort.codes[kind].join(cohort.visits.select("visit", "visit_id"), on="visit")  # type: ignore[index]
    return dict(joined.group_by("visit_id").agg(pl.col("code").sort()).iter_rows())


def maps_of(cohort: Cohort, table: str) -> dict[str, int]:
    assert cohort.folder is not None
    ways: dict[str, int] = {"unmapped": 0}
    for row in json.loads((cohort.folder / "coverage.json").read_text()):
        if row["table"] == table:
            ways["unmapped"] += row["rows_unmapped"]
            for way, rows in row["mapped_by_way"].items():
                ways[way] = ways.get(way, 0) + rows
    return ways


def test_hospital_visits_become_visits(load: Load) -> None:
    cohort = load()
    visits = {row["visit_id"]: row for row in cohort.visits.to_dicts()}
    assert set(visits) == {"11", "12", "-20", "30"}
    assert (visits["11"]["admission_time"], visits["11"]["discharge_time"]) == (
        datetime(2020, 1, 1, 12),
        datetime(2020, 1, 5, 10),
    )
    assert (visits["12"]["admission_time"], visits["12"]["discharge_time"]) == (
        datetime(2020, 7, 1),
        datetime(2020, 7, 4),
    )
    # A day without a clock never ends a stay before it began.
    assert visits["30"]["discharge_time"] == visits["30"]["admission_time"]
    # The birthday of patient 1 is in June; that of the second is not recorded, and 95 counts as 90.
    assert [visits[name]["age"] for name in ("11", "12", "-20")] == [69, 70, 90]
    assert [visits[name]["died"] for name in ("11", "12", "-20", "30")] == [False, False, True, False]
    assert [visits[name]["site"] for name in ("11", "12")] == ["7", None]
    assert [visits[name]["ethnicity"] for name in ("11", "-20", "30")] == ["White", "Hispanic or Latino", "Martian"]
    people = {row["subject_id"]: row for row in cohort.patients.to_dicts()}
    assert [people[name]["sex"] for name in ("1", "-2", "3")] == ["F", "M", None]
    assert people["-2"]["death_time"] == datetime(2020, 5, 3)
    note = next(note for note in cohort.about["notes"] if "hospital visits" in note)
    assert note.startswith("2 of 6 visits are not hospital visits by their concept (9203: 1, 9202: 1)")


def test_visits_that_touch_are_one(load: Load) -> None:
    chosen = {"visit_concepts": "9201,9203,262"}
    cohort = load(chosen)
    first = cohort.visits.filter(pl.col("visit_id") == "10").row(0, named=True)
    assert (first["admission_time"], first["discharge_time"]) == (datetime(2020, 1, 1, 8), datetime(2020, 1, 5, 10))
    assert "11" not in cohort.visits["visit_id"].to_list()
    assert codes_of(cohort, "diagnosis")["10"] == ["108", "49"]
    assert any(note.startswith("1 visit touches an earlier one") for note in cohort.about["notes"])
    apart = load({**chosen, "merge": "never"})
    assert {"10", "11"} <= set(apart.visits["visit_id"])
    # Half a year is not a touch, unless the setting says so.
    assert load({**chosen, "merge_hours": 24 * 200}).visits.height == cohort.visits.height - 1


@pytest.mark.parametrize("end", ["2020-01-03,2020-01-03 09:00:00", ",", "2020-01-05,2020-01-05 10:00:00"])
def test_a_visit_within_a_stay_neither_ends_it_nor_says_where_it_led(load: Load, end: str) -> None:
    """The patient died at the end of the stay, whatever an earlier, open or silent part of it says."""
    place = 0 if "10:00" in end else 8536
    rows = [line.replace(",7,8536", f",7,{4216643}") for line in TABLES["visit_occurrence"]]
    cohort = load(visit_occurrence=[*rows, f"14,1,9201,2020-01-02,2020-01-02 08:00:00,{end},7,{place}"], death=None)
    stay = cohort.visits.filter(pl.col("visit_id") == "11").row(0, named=True)
    assert (stay["discharge_time"], stay["died"]) == (datetime(2020, 1, 5, 10), True)
    assert "14" not in cohort.visits["visit_id"].to_list()


def test_a_stay_whose_last_visit_is_open_is_open(load: Load) -> None:
    rows = [*TABLES["visit_occurrence"], "14,1,9201,2020-01-05,2020-01-05 10:00:00,,,7,0"]
    stay = load(visit_occurrence=rows).visits.filter(pl.col("visit_id") == "11")
    assert stay["discharge_time"].to_list() == [None]


def test_without_a_vocabulary_source_values_are_read_by_their_form(load: Load) -> None:
    """A code of the site's own that looks like ICD is none; E8788 is ICD-9, and E785 is ICD-10."""
    cohort = load()
    assert codes_of(cohort, "diagnosis") == {"11": ["108", "49"], "-20": ["53"], "30": ["2616"]}
    assert codes_of(cohort, "procedure") == {"11": ["58"]}
    assert codes_of(cohort, "medication") == {"11": ["B01A", "N02B"], "-20": ["A10A"]}
    assert maps_of(cohort, "condition_occurrence.csv") == {"table": 4, "unmapped": 3}
    assert cohort.about["rows_without_visit"]["condition_occurrence.csv"] == 1
    assert any(note.startswith("no vocabulary (table 'concept') is there") for note in cohort.about["notes"])


def test_a_vocabulary_leads_from_standard_concepts_to_codes(load: Load, vocabulary: str) -> None:
    """SNOMED: the code that means it alone and can be billed; else the nearest concept above; RxNorm: its ATC class."""
    cohort = load({"vocabulary": vocabulary})
    assert codes_of(cohort, "diagnosis") == {"11": ["108", "49"], "12": ["49"], "-20": ["53"], "30": ["2616"]}
    assert codes_of(cohort, "procedure") == {"11": ["58"], "-20": ["58"]}
    assert codes_of(cohort, "medication") == {"11": ["B01A", "C03C", "N02B"], "-20": ["A10A"]}
    assert maps_of(cohort, "condition_occurrence.csv") == {"snomed": 2, "table": 4, "unmapped": 1}
    assert maps_of(cohort, "drug_exposure.csv") == {"name": 2, "rxnorm_ancestor": 1, "unmapped": 1}
    assert not any("vocabulary" in note for note in cohort.about["notes"])


def test_a_vocabulary_next_to_the_records_is_used(load: Load) -> None:
    beside = {name: lines for name, lines in VOCABULARY.items() if name != "CONCEPT_ANCESTOR"}
    cohort = load(**beside)
    assert codes_of(cohort, "diagnosis")["12"] == ["49"]
    assert codes_of(cohort, "medication")["11"] == ["B01A", "C03C", "N02B"]
    assert maps_of(cohort, "drug_exposure.csv") == {"name": 3, "unmapped": 1}
    assert any("no table 'concept_ancestor'" in note for note in cohort.about["notes"])


def test_a_billed_diagnosis_has_no_time_of_its_own(load: Load) -> None:
    cohort = load()
    times = dict(
        cohort.codes["diagnosis"].filter(pl.col("visit") == cohort.visits["visit_id"].to_list().index("11"))
        .select("code", "time").iter_rows()
    )  # fmt: skip
    assert times == {"108": datetime(2020, 1, 2, 8), "49": None}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"cdm_source": ["cdm_version", "5.2.2"]}, r"version of the common data model is '5\.2\.2'"),
        ({"cdm_source": ["cdm_version", "v6.0"]}, r"version of the common data model is 'v6\.0'"),
        ({"person": None}, r"no table 'person'"),
        ({"visit_occurrence": None}, r"no table 'visit_occurrence'"),
        ({"condition_occurrence": None}, r"no table 'condition_occurrence'"),
        ({"person": [*TABLES["person"], TABLES["person"][1]]}, r"person\.csv', row 5: this person is in an earlier row"),
        (
            {"visit_occurrence": [*TABLES["visit_occurrence"], TABLES["visit_occurrence"][1]]},
            r"visit_occurrence\.csv', row 8: this visit is in an earlier row",
        ),
        (
            {"person": TABLES["person"][:-1]},
            r"visit_occurrence\.csv', row 7: the person of this visit is not in the table 'person'",
        ),
        (
            {"visit_occurrence": [line.replace("2020-01-05 10:", "2019-01-05 10:") for line in TABLES["visit_occurrence"]]},
            r"visit_occurrence\.csv', row 3: discharge_time is before admission_time",
        ),
        (
            # Row 2, an emergency visit that ended there, is no hospital visit.
            {"visit_occurrence": [line.replace("2020-01-05 10:", "2019-01-05 10:").replace("2020-01-01 12:00:00,7,0", "2019-01-01 12:00:00,7,0") for line in TABLES["visit_occurrence"]]},
            r"visit_occurrence\.csv', row 3: discharge_time is before admission_time \(1 such visit",
        ),
        (
            {"condition_occurrence": [line.replace(",11,", ",99,").replace(",12,", ",98,").replace(",-20,", ",97,").replace(",30,", ",96,") for line in TABLES["condition_occurrence"]]},
            r"none of the 8 rows of .*condition_occurrence\.csv' belongs to a visit",
        ),
        (
            {"drug_exposure": [line.replace("2020-05-08 10:00:00", "soon") for line in TABLES["drug_exposure"]]},
            r"drug_exposure\.csv', row 5: a value of the form 'xxxx' is not a time",
        ),
        (
            {"person": [line.replace(",1990,", ",1790,") for line in TABLES["person"]]},
            r"visit_occurrence\.csv', row 7: the age at admission, from 'year_of_birth', must be between 0 and 130",
        ),
        (
            {"drug_exposure": [line.replace(",1,", ",3,", 1) if ",11," in line else line.replace(",-2,", ",3,") for line in TABLES["drug_exposure"]]},
            r"all rows of .*drug_exposure\.csv' that belong to a visit \(4\) name another patient",
        ),
        ({"person": [line.replace(",1950,6,", ",1950,13,") for line in TABLES["person"]]}, r"row 2: 'month_of_birth' must be 1 to 12"),
        (
            {"visit_occurrence": [line.replace(",9201,", ",9202,").replace(",262,", ",9202,") for line in TABLES["visit_occurrence"]]},
            r"none of the 6 visits is a hospital visit by its concept \(there: 9202: 5, 9203: 1\)",
        ),
    ],
)  # fmt: skip
def test_bad_input_ends_in_a_sentence(load: Load, tmp_path: Path, changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlmError, match=sentence):
        load(**changed)
    assert not list(tmp_path.glob("*-cohort"))


@pytest.mark.parametrize("table", ["procedure_occurrence", "drug_exposure", "death", "cdm_source"])
def test_an_optional_table_may_be_missing(load: Load, table: str) -> None:
    cohort = load(**{table: None})
    assert f"the optional table '{table}' is not there" in cohort.about["notes"]


def test_events_of_another_person_than_their_visit_are_left_out(load: Load) -> None:
    """Row 1 says that it is person 3's, in a visit of person 1."""
    changed = [line.replace("1,1,316139,", "1,3,316139,") for line in TABLES["condition_occurrence"]]
    assert "108" in codes_of(load(), "diagnosis")["11"]
    cohort = load(condition_occurrence=changed)
    assert codes_of(cohort, "diagnosis")["11"] == ["49"]
    said = "1 row of 'condition_occurrence.csv' names another patient than its visit does, and is left out"
    assert said in cohort.about["notes"]
    assert cohort.about["rows_without_visit"] == load().about["rows_without_visit"]


def test_second_deaths_and_no_deaths_are_noted(load: Load) -> None:
    cohort = load(death=[*TABLES["death"], "-2,2020-05-04,"])
    assert "1 further death of a person who died before was left out" in cohort.about["notes"]
    assert "the optional table 'death' has no rows" in load(death=TABLES["death"][:1]).about["notes"]


def test_a_vocabulary_that_is_none_is_refused(load: Load, tmp_path: Path) -> None:
    with pytest.raises(PlmError, match="no table 'concept'"):
        load({"vocabulary": str(tmp_path)})


@pytest.mark.parametrize("inputs", ["retrospective", "known"])
@pytest.mark.parametrize("task", ["readmission", "length_of_stay", "drug_recommendation"])
def test_no_leak(load: Load, task: str, inputs: str) -> None:
    cohort = load()
    assert audit(cohort, find_task(task, cohort), TaskSettings.model_validate({"inputs": inputs})).leaks == []


@pytest.mark.parametrize(("kind", "late"), [("diagnosis", "53"), ("medication", "A10A")])
def test_a_code_dated_after_the_discharge_is_left_out_or_caught(load: Load, kind: Kind, late: str) -> None:
    cohort = load()
    task = find_task("readmission", cohort)
    settings = task.settings({"inputs": "known", "population": "discharged_alive"})
    living = replace(cohort, visits=cohort.visits.with_columns(pl.lit(False).alias("died")))
    honest = build_instances(living, task, settings)
    assert late not in set(honest.inputs(kind)["code"])
    assert audit_instances(honest).leaks == []
    careless = without_times(honest)
    assert late in set(careless.inputs(kind)["code"])
    assert "only what was known at prediction time" in [found.check for found in audit_instances(careless).leaks]


# A database: DuckDB and PostgreSQL give what the files give.


def typed(tables: dict[str, list[str] | None]) -> dict[str, pl.DataFrame]:
    """Return tables of CSV lines with the types that a database has."""
    frames = {}
    for name, lines in tables.items():
        if lines is None:
            continue
        separator = "\t" if "\t" in lines[0] else ","
        text = "\n".join(lines).encode()
        frames[name.lower()] = _with_types(pl.read_csv(text, separator=separator, infer_schema=False, quote_char=None))
    return frames


def _with_types(frame: pl.DataFrame) -> pl.DataFrame:
    def kind(column: str) -> pl.Expr:
        name = column.lower()
        values = pl.col(column).replace("", None)
        if name.endswith("_datetime"):
            return values.str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us")
        if name.endswith("_date") and name not in ("valid_start_date", "valid_end_date"):
            return values.str.to_date("%Y-%m-%d")
        is_number = name.endswith(("_id", "_of_birth", "_id_1", "_id_2")) or name.startswith("min_levels")
        is_text = name in ("vocabulary_id", "domain_id", "concept_class_id", "relationship_id")
        return values.cast(pl.Int64) if is_number and not is_text else values

    return frame.select(kind(column) for column in frame.columns)


def same(first: Cohort, second: Cohort) -> bool:
    return all(first.tables()[name].equals(table) for name, table in second.tables().items())


@pytest.fixture(scope="module")
def tiny_database(postgres: Server) -> str:
    postgres.load("tiny", typed({**TABLES, **VOCABULARY}), schema="cdm")
    return postgres.address("tiny")


@pytest.fixture
def duckdb_file(tmp_path: Path) -> Path:
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    path = tmp_path / "cdm.duckdb"
    with duckdb.connect(str(path)) as connection:
        for name, frame in typed({**TABLES, **VOCABULARY}).items():
            connection.register("rows", frame.to_arrow())
            connection.execute(f"CREATE TABLE {name.upper()} AS SELECT * FROM rows")  # noqa: S608
            connection.unregister("rows")
    return path


def test_a_duckdb_file_equals_the_folder(load: Load, vocabulary: str, duckdb_file: Path, store: CodeStore) -> None:
    out = duckdb_file.with_name("cohort")
    prepared = prepare("omop", str(duckdb_file), out, store=store)
    assert same(Cohort.load(out), load({"vocabulary": vocabulary}))
    assert prepared.about["identity"]["files"]["person.parquet"]["rows"] == 3
    assert prepare("omop", str(duckdb_file), out, store=store).reused
    assert sorted(path.name for path in out.parent.iterdir() if path.name.startswith(".")) == []


def test_another_file_is_refused(tmp_path: Path, store: CodeStore) -> None:
    (tmp_path / "note.txt").write_text("DUCK")
    with pytest.raises(PlmError, match="is a file, but OMOP is read from a folder"):
        prepare("omop", tmp_path / "note.txt", tmp_path / "cohort", store=store)
    with pytest.raises(PlmError, match="a database of the kind 'mysql' cannot be read"):
        prepare("omop", "mysql://me:secret@host/db", tmp_path / "cohort", store=store)


@pytest.mark.parametrize(
    "address",
    ["postgresql://me:secret@host/db", "postgresql:/me:secret@host/db", "me:secret@host/db", "host=h password=secret"],
)
def test_an_address_is_not_repeated_where_a_folder_is_wanted(tmp_path: Path, store: CodeStore, address: str) -> None:
    with pytest.raises(PlmError) as caught:
        prepare("mimic4", address, tmp_path / "cohort", store=store)
    assert str(caught.value).startswith("MIMIC-IV is read from a folder, not from a database")
    assert "secret" not in str(caught.value)
    if "//" not in address:
        with pytest.raises(PlmError, match="the database address is incomplete; give a postgresql:// address"):
            prepare("omop", address, tmp_path / "cohort", store=store)


def test_postgres_equals_the_folder_and_tells_no_password(
    load: Load, vocabulary: str, tiny_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLM_CODES", str(tmp_path / "codes"))
    out = tmp_path / "cohort"
    done = CliRunner().invoke(app, ["prepare", "omop", tiny_database, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert same(Cohort.load(out), load({"vocabulary": vocabulary}))
    written = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    for secret in (PASSWORD, tiny_database.split(":")[2].split("@")[0]):
        assert secret.encode() not in written
        assert secret not in done.output


def test_the_transaction_only_reads(tiny_database: str) -> None:
    with (
        databases.opened_database(tiny_database, marker="person") as database,
        pytest.raises(Exception, match="read-only transaction"),
    ):
        list(database.query("CREATE TABLE cdm.mine (number int)"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"password": "wr0ng@secret"}, "the user or the password is wrong"),
        ({"port": 1}, "no server answers there"),
        ({"database": "other"}, "there is no database of that name"),
    ],
)
def test_a_connection_that_fails_ends_in_a_sentence(
    postgres: Server, tiny_database: str, tmp_path: Path, store: CodeStore, change: dict[str, Any], reason: str
) -> None:
    del tiny_database
    address = postgres.address(change.pop("database", "tiny"), **change)
    with pytest.raises(PlmError, match=f"cannot be read from the database: {reason}") as caught:
        prepare("omop", address, tmp_path / "cohort", store=store)
    for secret in (PASSWORD, "wr0ng", "p%40ss"):
        assert secret not in f"{caught.value!r} {caught.value.__cause__!r}"
    assert caught.value.__suppress_context__
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_goes_away_leaves_nothing(
    postgres: Server, tiny_database: str, tmp_path: Path, store: CodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stops while the second table is being copied."""
    whole, asked = databases.copy_table, []

    def stopping(database: databases.Database, table: str, sql: str, copied: databases.Copied) -> int:
        asked.append(table)
        if table == "visit_occurrence":
            assert list(tmp_path.glob(".cohort.source.*.partial/person.parquet"))
            postgres.stop()
        return whole(database, table, sql, copied)

    monkeypatch.setattr("patients_like_me.records.omop_database.copy_table", stopping)
    try:
        with pytest.raises(
            PlmError, match="visit_occurrence cannot be read from the database: the connection was lost"
        ):
            prepare("omop", tiny_database, tmp_path / "cohort", store=store)
    finally:
        postgres.start()
    assert asked == ["cdm_source", "person", "visit_occurrence"]
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_goes_away_within_a_table_leaves_nothing(
    postgres: Server, tmp_path: Path, store: CodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stops after the first piece of a table that no buffer holds whole."""
    rows = pl.int_range(1, 1_500_001, eager=True).alias("drug_exposure_id")
    drugs = typed(TABLES)["drug_exposure"]
    many = drugs.clear().select(pl.exclude("drug_exposure_id"))
    many = rows.to_frame().with_columns(
        pl.lit(drugs[name][1]).cast(kind).alias(name) for name, kind in many.schema.items()
    )
    postgres.load("large", {**typed(TABLES), "drug_exposure": many})
    whole = databases._pieces

    def stopping(reader: Any) -> Iterator[pl.DataFrame]:
        for number, piece in enumerate(whole(reader)):
            if "drug_concept_id" in piece.columns and number == 0:
                postgres.stop()
            yield piece

    monkeypatch.setattr(databases, "_pieces", stopping)
    try:
        with pytest.raises(PlmError, match="drug_exposure cannot be read from the database: the connection was lost"):
            prepare("omop", postgres.address("large"), tmp_path / "cohort", store=store)
    finally:
        postgres.start()
    assert list(tmp_path.iterdir()) == []


def test_a_bad_row_of_a_database_is_named_without_the_copy(postgres: Server, tmp_path: Path, store: CodeStore) -> None:
    postgres.load("twice", typed({**TABLES, "person": [*TABLES["person"], TABLES["person"][1]]}))
    with pytest.raises(PlmError, match=r"'the database/person\.parquet', row \d+: this person is in an earlier row"):
        prepare("omop", postgres.address("twice"), tmp_path / "cohort", store=store)
    assert list(tmp_path.iterdir()) == []


# The MIMIC-IV demo: the same hundred patients through two doors.


@pytest.fixture(scope="module")
def demo(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if not (shared_data / "mimic4_demo_omop").is_dir():
        pytest.skip("the MIMIC-IV demo in OMOP is not among the real records of this machine")
    folder = tmp_path_factory.mktemp("demo")
    store = CodeStore(folder / "codes")
    for name in ("icd9proc_to_ccs", "ndc11_to_rxcui_gamenet", "rxcui_to_atc3_graphcare"):
        store.add(shared_data / "codes" / f"{name}.csv.gz")
    omop = shared_data / "mimic4_demo_omop"
    native = Cohort.load(prepare("mimic4", shared_data / "mimic4_demo", folder / "mimic4", store=store).folder)
    cohort = Cohort.load(prepare("omop", omop, folder / "omop", reading=DEMO_VISITS, store=store).folder)
    admission = pl.read_csv(omop / "visit_occurrence.csv.gz", infer_schema=False).select(
        pl.col("visit_occurrence_id").alias("visit_id"),
        pl.col("visit_source_value").str.split("|").list.get(1).alias("hadm_id"),
    )
    return {"native": native, "omop": cohort, "admission": admission, "store": store, "folder": omop}


def by_admission(demo: dict[str, Any]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the visits of both cohorts with MIMIC's number of the admission."""
    native, omop = demo["native"], demo["omop"]
    return (
        native.visits.with_columns(pl.col("visit_id").alias("hadm_id")).join(native.patients, on="subject"),
        omop.visits.join(demo["admission"], on="visit_id").join(omop.patients, on="subject"),
    )


def test_the_demo_has_the_same_visits(demo: dict[str, Any]) -> None:
    native, omop = by_admission(demo)
    assert (native.height, omop.height, omop["subject"].n_unique()) == (275, 270, 100)
    both = native.join(omop, on="hadm_id", suffix="_omop")
    assert both.height == 270
    for column in ("discharge_time", "age", "died", "sex"):
        assert both[column].equals(both[f"{column}_omop"], check_names=False), column
    # The conversion lets a visit begin at the registration in the emergency department.
    assert both.filter(pl.col("admission_time") != pl.col("admission_time_omop")).height == 180
    assert both.filter(pl.col("admission_time") < pl.col("admission_time_omop")).is_empty()


@pytest.mark.parametrize(
    ("kind", "table", "prefix", "rows", "lost"),
    [
        ("diagnosis", "diagnoses_icd", "condition", 4459, 847),
        ("procedure", "procedures_icd", "procedure", 708, 403),
    ],
)
def test_the_codes_of_the_demo_are_those_that_the_conversion_kept(
    demo: dict[str, Any], shared_data: Path, kind: Kind, table: str, prefix: str, rows: int, lost: int
) -> None:
    """MIMIC's own rows, less those whose code is not in the OMOP table, give the same categories in every visit."""
    _, omop = by_admission(demo)
    key = ["hadm_id", "icd_code"]
    native = pl.read_csv(shared_data / "mimic4_demo" / "hosp" / f"{table}.csv", infer_schema=False)
    native = native.with_columns(pl.col("icd_code").str.strip_chars()).join(omop, on="hadm_id", how="semi")
    events = pl.read_csv(demo["folder"] / f"{prefix}_occurrence.csv.gz", infer_schema=False)
    moved = events.join(demo["admission"], left_on="visit_occurrence_id", right_on="visit_id").select(
        "hadm_id", pl.col(f"{prefix}_source_value").str.strip_chars().alias("icd_code")
    )
    kept = native.join(moved, on=key, how="semi")
    codes = kept.select("icd_version", "icd_code").unique()
    expected = kept.join(map_icd(codes, kind, demo["store"]), on=["icd_version", "icd_code"])
    found = demo["omop"].codes[kind].join(omop.select("visit", "hadm_id"), on="visit")
    assert set(found.select("hadm_id", "code").rows()) == set(expected.select("hadm_id", "ccs").rows())
    assert (native.height, native.height - kept.height) == (rows, lost)


def test_the_medications_and_deaths_of_the_demo(demo: dict[str, Any]) -> None:
    """An NDC without a name is lost where no table knows it; the table of deaths has those in hospital only."""
    native, omop = by_admission(demo)
    pairs = [
        set(
            cohort.codes["medication"]
            .join(visits.join(omop, on="hadm_id", how="semi").select("visit", "hadm_id"), on="visit")
            .select("hadm_id", "code")
            .rows()
        )
        for cohort, visits in ((demo["native"], native), (demo["omop"], omop))
    ]
    assert [len(pairs[0] & pairs[1]), len(pairs[0] - pairs[1]), len(pairs[1] - pairs[0])] == [4626, 1482, 19]
    people = native.join(omop, on="hadm_id", suffix="_omop").unique("subject_id").drop_nulls("death_time")
    ours, theirs = pl.col("death_time_omop"), pl.col("death_time")
    equal, same_day = (ours == theirs).fill_null(False), (ours.dt.date() == theirs.dt.date()).fill_null(False)
    found = people.select(died=pl.len(), equal=equal.sum(), moved=(same_day & ~equal).sum(), lost=ours.null_count())
    assert found.row(0) == (31, 11, 4, 16)


def test_the_labels_of_the_demo(demo: dict[str, Any]) -> None:
    """A visit that begins earlier lasts longer: 29 classes of stay and two readmissions differ."""
    admission = dict(demo["admission"].iter_rows())
    for name, common, differing in (("readmission", 170, 2), ("length_of_stay", 270, 29)):
        labels = [
            dict(zip(instances.instance_ids, instances.labels.tolist(), strict=True))
            for instances in (build_instances(demo[door], find_task(name, demo[door])) for door in ("native", "omop"))
        ]
        through = {admission[visit]: label for visit, label in labels[1].items()}
        both = labels[0].keys() & through.keys()
        assert len(both) == common
        assert sum(labels[0][visit] != through[visit] for visit in both) == differing


def test_the_demo_from_postgres_equals_the_files(demo: dict[str, Any], postgres: Server, tmp_path: Path) -> None:
    names = (
        "cdm_source",
        "person",
        "visit_occurrence",
        "condition_occurrence",
        "procedure_occurrence",
        "drug_exposure",
        "death",
    )
    frames = {name: _with_types(pl.read_csv(demo["folder"] / f"{name}.csv.gz", infer_schema=False)) for name in names}
    postgres.load("demo", frames)
    prepared = prepare("omop", postgres.address("demo"), tmp_path / "cohort", reading=DEMO_VISITS, store=demo["store"])
    assert same(Cohort.load(prepared.folder), demo["omop"])


@pytest.mark.parametrize("inputs", ["retrospective", "known"])
def test_no_leak_in_the_demo(demo: dict[str, Any], inputs: str) -> None:
    for task in all_tasks().values():
        assert audit(demo["omop"], task, TaskSettings.model_validate({"inputs": inputs})).leaks == []


def test_a_date_and_a_datetime_that_disagree_are_said(load: Load) -> None:
    rows = [line.replace("2020-05-01,2020-05-01 09", "2021-05-01,2020-05-01 09") for line in TABLES["visit_occurrence"]]
    said = "2 visits have a date of another day than their datetime: the datetime is taken"
    assert said in load(visit_occurrence=rows).about["notes"]
    assert not any("another day" in note for note in load().about["notes"])


def test_a_death_of_nobody_is_said(load: Load) -> None:
    cohort = load(death=[*TABLES["death"], ",2020-05-03,"])
    assert "1 row of 'death' without a person_id: left out" in cohort.about["notes"]
    assert cohort.patients.equals(load().patients)
