"""MEDS: codes get their meaning from a dialect, and visits are rebuilt from their events."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tiny_forms import EVENTS, Event, write_meds
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort, Kind
from patients_like_me.records.dialects.meds import find_meds_dialect
from patients_like_me.records.event_visits import VisitClock, paired_visits
from patients_like_me.records.meds_layout import COLUMNS
from patients_like_me.records.prepare import describe, prepare
from patients_like_me.records.table_files import notes_on_missing_parts
from patients_like_me.tasks.audit import audit, audit_instances
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task
from patients_like_me.tasks.task import TaskSettings

Load = Callable[..., Cohort]


@pytest.fixture
def load(tmp_path: Path, store: CodeStore) -> Load:
    """Return a function that prepares the tiny dataset, with other events or settings."""

    def load(events: list[Event] = EVENTS, reading: dict[str, Any] | None = None, **options: Any) -> Cohort:
        folder = write_meds(tmp_path / f"meds{len(list(tmp_path.iterdir()))}", events, **options)
        return Cohort.load(prepare("meds", folder, folder.with_suffix(".cohort"), reading=reading, store=store).folder)

    return load


def codes_of(cohort: Cohort, kind: Kind) -> list[tuple[str, str]]:
    joined = cohort.codes[kind].join(cohort.visits.select("visit", "visit_id"), on="visit")
    return sorted(joined.select("visit_id", "code").rows())


def born_in(year: int | None, event: Event) -> Event:
    """Return an event, with another time of the first subject's birth."""
    if event[0] != 1 or event[2] != "MEDS_BIRTH":
        return event
    return (1, f"{year:04}-01-01 00:00" if year else None, event[2])


FIRST, SECOND, THIRD = "1-21500101T100000", "1-21500301T100000", "2-21510130T080000"


def test_visits_are_rebuilt_from_admissions_and_discharges(load: Load) -> None:
    cohort = load()
    assert cohort.visits["visit_id"].to_list() == [FIRST, SECOND, THIRD]
    assert cohort.visits["discharge_time"].to_list()[0] == datetime(2150, 1, 2, 11)
    assert cohort.visits["age"].to_list() == [60, 60, 90]
    assert cohort.visits["died"].to_list() == [False, False, True]
    assert cohort.patients["sex"].to_list() == ["F", "M"]
    assert cohort.patients["death_time"].to_list() == [None, datetime(2151, 2, 1, 12)]


def test_a_death_counts_in_any_case(load: Load) -> None:
    """A discharge of another form would be one that the patient survived, and nobody would be told."""
    died, other = "HOSPITAL_DISCHARGE//DIED", "Hospital_discharge//Died"
    cohort = load([(subject, time, other if code == died else code) for subject, time, code in EVENTS])
    assert cohort.visits["died"].to_list() == [False, False, True]


def test_a_birth_without_a_time_is_said(load: Load) -> None:
    cohort = load([born_in(None, event) for event in EVENTS])
    assert cohort.visits["age"].to_list() == [None, None, 90]
    assert "1 event of a birth without a time: not read" in cohort.about["notes"]


def test_a_birth_that_was_shifted_by_three_hundred_years_gives_the_oldest_age(load: Load) -> None:
    assert load([born_in(1850, event) for event in EVENTS]).visits["age"].to_list() == [90, 90, 90]


def test_events_belong_to_the_visit_in_whose_time_they_fall(load: Load) -> None:
    """A day counts as a whole, a discharge belongs to the visit that ends, an order may be a day early."""
    cohort = load()
    assert codes_of(cohort, "diagnosis") == [(FIRST, "108"), (SECOND, "108"), (THIRD, "157")]
    assert codes_of(cohort, "procedure") == [(FIRST, "58")]
    assert codes_of(cohort, "medication") == [(FIRST, "C03C"), (SECOND, "A10A"), (THIRD, "B01A")]
    assert cohort.about["rows_without_visit"] == {"train": 1}
    assert cohort.about["rows_read"] == {"train": 8}


def test_a_diagnosis_at_discharge_stays_with_the_visit_that_ends_there(load: Load) -> None:
    """The next admission is at the same second; only the meaning of the time tells the two visits apart."""
    changed: list[Event] = [
        (1, "2150-01-02 11:00", "HOSPITAL_ADMISSION//URGENT//UNK") if event[2].startswith("HOSPITAL_ADMISSION//URGENT")
        and event[0] == 1 else event
        for event in EVENTS
    ]  # fmt: skip
    cohort = load(changed)
    assert cohort.visits.filter(pl.col("visit_id").str.starts_with("1-"))["discharge_time"].to_list() == [
        datetime(2150, 1, 2, 11),
        datetime(2150, 3, 4, 9),
    ]
    assert ("1-21500101T100000", "108") in codes_of(cohort, "diagnosis")


def test_a_visit_id_goes_before_the_time(load: Load) -> None:
    ids = {(subject, code): 7 for subject, _, code in EVENTS if subject == 2 and code.startswith("HOSPITAL")}
    ids |= {(1, "HOSPITAL_ADMISSION//EW EMER.//EMERGENCY ROOM"): 5, (1, "HOSPITAL_ADMISSION//URGENT//UNK"): 6}
    ids |= {(1, "MEDICATION//START//Aspirin"): 6, (2, "MEDICATION//START//Heparin"): 5}
    events = [event for event in EVENTS if event[2] != "HOSPITAL_DISCHARGE//HOME"]
    events += [(1, "2150-01-02 11:00", "HOSPITAL_DISCHARGE//A"), (1, "2150-03-04 09:00", "HOSPITAL_DISCHARGE//B")]
    ids |= {(1, "HOSPITAL_DISCHARGE//A"): 5, (1, "HOSPITAL_DISCHARGE//B"): 6}
    cohort = load(events, visit_ids=ids)
    assert cohort.visits["visit_id"].to_list() == ["5", "6", "7"]
    # The id of another subject's visit is not believed, and that is said.
    assert "1 event names a visit of another subject, and is left out" in cohort.about["notes"]
    assert codes_of(cohort, "medication") == [("5", "C03C"), ("6", "A10A"), ("6", "B01A"), ("6", "N02B")]


def test_admissions_and_discharges_that_do_not_alternate() -> None:
    def times(*days: int) -> pl.DataFrame:
        return pl.DataFrame({"subject_id": [1] * len(days), "time": [datetime(2100, 1, day) for day in days]})

    paired = paired_visits(times(1, 5, 9), times(6, 12, 20).with_columns(died=False))
    assert [day and day.day for day in paired["discharge_time"]] == [None, 6, 12]
    same_second = paired_visits(times(1, 3), times(3, 3).with_columns(died=False))
    assert [day.day for day in same_second["discharge_time"]] == [3, 3]


def test_after_a_visit_within_another_an_event_belongs_to_the_outer_one_again() -> None:
    """Compared with a look at every visit: the last one that has begun and not ended."""
    generator = np.random.default_rng(0)
    begins, lengths = generator.integers(0, 60, 40), generator.integers(0, 30, 40)
    start = datetime(2100, 1, 1)
    visits = pl.DataFrame(
        {
            "subject_id": generator.integers(1, 3, 40),
            "admission_time": [start + timedelta(hours=int(begin)) for begin in begins],
            "discharge_time": [start + timedelta(hours=int(end)) for end in begins + lengths],
        }
    ).sort("subject_id", "admission_time", "discharge_time")
    asked = pl.DataFrame({"subject_id": [1, 2, 3]}).join(
        pl.DataFrame({"time": [start + timedelta(hours=hour) for hour in range(-1, 92)]}), how="cross"
    )
    open_ones = [
        [
            row
            for row, (subject, begin, end) in enumerate(visits.iter_rows())
            if subject == patient and begin <= time <= end
        ]
        for patient, time in asked.iter_rows()
    ]
    times = asked["time"].cast(pl.Int64).to_numpy()
    found = VisitClock.of(visits).find(asked["subject_id"].to_numpy(), times)
    assert found.tolist() == [max(rows, default=-1) for rows in open_ones]


def test_a_discharge_event_finds_the_outer_visit_that_ends_when_another_begins() -> None:
    days = [(1, 10), (3, 5), (10, 12)]
    visits = pl.DataFrame(
        {
            "subject_id": [1] * 3,
            "admission_time": [datetime(2100, 1, begin) for begin, _ in days],
            "discharge_time": [datetime(2100, 1, end) for _, end in days],
        }
    )
    times = pl.Series([datetime(2100, 1, 10)]).cast(pl.Int64).to_numpy()
    clock = VisitClock.of(visits)
    assert [clock.find(np.array([1]), times, dated=dated)[0] for dated in ("discharge", "moment")] == [0, 2]


def test_splits_of_the_dataset_are_refused_or_honoured(load: Load, tmp_path: Path, store: CodeStore) -> None:
    folder = write_meds(tmp_path / "split")
    splits = pl.DataFrame({"subject_id": [1, 2], "split": ["train", "held_out"]})
    splits.write_parquet(folder / "metadata" / "subject_splits.parquet")
    with pytest.raises(PlmError, match=r"splits of their own \(held_out, train\).*subject_splits=ignore"):
        prepare("meds", folder, tmp_path / "a", store=store)
    assert not (tmp_path / "a").exists()
    part = prepare("meds", folder, tmp_path / "b", reading={"subject_splits": "held_out"}, store=store)
    assert Cohort.load(part.folder).patients["subject_id"].to_list() == ["2"]
    splits.vstack(pl.DataFrame({"subject_id": [1], "split": ["held_out"]})).write_parquet(
        folder / "metadata" / "subject_splits.parquet"
    )
    with pytest.raises(PlmError, match="puts 1 subject into several splits"):
        prepare("meds", folder, tmp_path / "d", reading={"subject_splits": "train"}, store=store)
    all_of_them = prepare("meds", folder, tmp_path / "c", reading={"subject_splits": "ignore"}, store=store)
    assert Cohort.load(all_of_them.folder).patients.height == 2


@pytest.mark.parametrize("name", ["subject_splits.parquet", "dataset.json", "codes.parquet"])
def test_metadata_that_is_a_link_to_nothing_is_not_absent(tmp_path: Path, store: CodeStore, name: str) -> None:
    path = write_meds(tmp_path / "meds") / "metadata" / name
    path.unlink(missing_ok=True)
    path.symlink_to("nowhere")
    with pytest.raises(PlmError, match=f"{name}' is a link to nothing, not a file"):
        prepare("meds", tmp_path / "meds", tmp_path / "cohort", store=store)


def test_kinds_of_code_that_are_not_there_are_noted(load: Load) -> None:
    cohort = load([event for event in EVENTS if "DIAGNOSIS" not in event[2]], reading={"dialect": "mimic4"})
    assert "the dialect 'mimic4' finds no diagnosis in this dataset" in cohort.about["notes"]


def test_label_files_become_own_tasks(tmp_path: Path, load: Load) -> None:
    """A label belongs to the visit that has ended by its time; within a visit it would ask too early."""
    times = [datetime(2150, 1, 3), datetime(2150, 3, 2), datetime(2150, 4, 1), datetime(2151, 2, 1, 12)]
    labels = pl.DataFrame(
        {"subject_id": [1, 1, 1, 2], "prediction_time": times, "boolean_value": [True, True, False, True]}
    )
    labels.write_parquet(tmp_path / "returns.parquet")
    cohort = load(reading={"labels": str(tmp_path / "returns.parquet")})
    instances = build_instances(cohort, find_task("returns", cohort))
    found = dict(zip(instances.instance_ids, instances.labels.tolist(), strict=True))
    assert found == {FIRST: 1, SECOND: 0, THIRD: 1}
    assert "labels of 'returns' that ask before the end of a visit, left out: 1" in cohort.about["notes"]
    early = labels.with_columns(pl.lit(datetime(2150, 1, 1)).cast(pl.Datetime("us")).alias("prediction_time"))
    early.write_parquet(tmp_path / "early.parquet")
    with pytest.raises(PlmError, match=r"no label of .*early.parquet' has a prediction time after the end of a visit"):
        load(reading={"labels": str(tmp_path / "early.parquet")})


def test_a_damaged_label_file_is_refused(tmp_path: Path, load: Load) -> None:
    (tmp_path / "returns.parquet").write_text("subject_id,prediction_time,boolean_value\n")
    with pytest.raises(PlmError, match=r"returns.parquet' is not a whole Parquet file"):
        load(reading={"labels": str(tmp_path / "returns.parquet")})


def test_a_changed_dialect_list_of_codes_or_label_is_another_cohort(tmp_path: Path, store: CodeStore) -> None:
    """A shard of labels may be called like one of the events."""
    folder = write_meds(tmp_path / "meds", shards=1)
    codes, dialect, labels = folder / "metadata" / "codes.parquet", tmp_path / "ours.json", tmp_path / "back"
    shard = labels / "train" / "0.parquet"
    known = pl.DataFrame({"code": sorted({code for _, _, code in EVENTS})})
    known.write_parquet(codes)
    written = find_meds_dialect("mimic4").model_dump()
    dialect.write_text(json.dumps(written))
    shard.parent.mkdir(parents=True)
    label = pl.DataFrame({"subject_id": [1], "prediction_time": [datetime(2150, 1, 3)], "boolean_value": [True]})
    label.write_parquet(shard)
    edits: list[tuple[str, dict[str, str], Callable[[], object]]] = [
        (codes.name, {}, lambda: pl.concat([known, pl.DataFrame({"code": ["NEW"]})]).write_parquet(codes)),
        (dialect.name, {"dialect": str(dialect)}, lambda: dialect.write_text(json.dumps({**written, "about": "new"}))),
        (
            "back/train/0.parquet",
            {"dialect": "mimic4", "labels": str(labels)},
            lambda: label.with_columns(boolean_value=False).write_parquet(shard),
        ),
    ]
    for name, reading, edit in edits:
        out = tmp_path / f"{name.replace('/', '-')}-cohort"
        prepare("meds", folder, out, reading=reading, store=store)
        assert prepare("meds", folder, out, reading=reading, store=store).reused
        edit()
        with pytest.raises(PlmError, match=f"was prepared differently: .*{name}"):
            prepare("meds", folder, out, reading=reading, store=store)


def test_describe_says_what_becomes_of_every_code(tmp_path: Path) -> None:
    found = describe("meds", [write_meds(tmp_path / "meds")])
    rows = {row[0]: row[1:] for row in found.rows}
    assert rows["MEDICATION//START//{code}"] == ("4", "4", "medication (name)")
    assert rows["LAB"] == ("1", "1", "not read: no rule matches")
    assert rows["MEDICATION//*"][2] == "not read: the administration of a drug that is ordered too"


def test_describe_on_the_command_line_writes_nothing(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["prepare", "meds", str(write_meds(tmp_path / "meds")), "--describe"])
    assert done.exit_code == 0, done.output
    assert "dialect 'mimic4'" in done.output
    assert "medication (name)" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["meds"]


def test_a_dialect_of_ones_own(tmp_path: Path, load: Load) -> None:
    rules = [
        {"match": "IN", "role": "admission"},
        {"match": "OUT", "role": "discharge"},
        {"match": "dx:{code}", "role": "diagnosis", "system": "icd10"},
    ]
    path = tmp_path / "ours.json"
    path.write_text(json.dumps({"name": "ours", "rules": rules}))
    events: list[Event] = [
        (4, "2150-01-01 08:00", "IN"),
        (4, "2150-01-02 08:00", "dx:I50.9"),
        (4, "2150-01-03 08:00", "OUT"),
    ]
    assert codes_of(load(events, {"dialect": str(path)}), "diagnosis") == [("4-21500101T080000", "108")]


def test_the_extraction_of_eicu(load: Load) -> None:
    """A subject is a hospital stay there; a cell holds several ICD codes, and infusions are named in the text."""
    events: list[Event] = [
        (9, None, "GENDER//Female"),
        (9, None, "RACE//Asian"),
        (9, None, "AGE//> 89"),
        (9, "2014-01-01 10:00", "HOSPITAL_ADMISSION//Floor//West//t//>= 500"),
        (9, "2014-01-01 10:00", "HOSPITAL_ADMISSION//Floor//West//t//>= 500"),
        (9, "2014-01-03 10:00", "HOSPITAL_DISCHARGE//Expired//Death"),
        (9, "2014-01-02 10:00", "DIAGNOSIS//ICD//9//428.0, I50.9"),
        (9, "2014-01-02 10:00", "MEDICATION//STARTED//heparin"),
        (9, "2014-01-02 10:00", "TREATMENT//ENTERED//pulmonary|ventilation and oxygenation|mechanical ventilation"),
    ]
    cohort = load(events)
    assert cohort.visits.select("visit_id", "age", "died", "ethnicity").rows() == [("9", 90, True, "Asian")]
    assert codes_of(cohort, "diagnosis") == [("9", "108")]
    assert codes_of(cohort, "medication") == [("9", "B01A")]
    with pytest.raises(PlmError, match="readmission cannot be computed"):
        build_instances(cohort, find_task("readmission", cohort))


def test_a_column_can_hold_the_code(tmp_path: Path, store: CodeStore) -> None:
    """Infusions are named in the text of the event, drugs in its code; both are medications by name."""
    events: list[Event] = [
        (9, "2014-01-01 10:00", "HOSPITAL_ADMISSION//Floor"),
        (9, "2014-01-02 10:00", "MEDICATION//STARTED//heparin"),
        (9, "2014-01-02 11:00", "INFUSION_DRUG//7"),
        (9, "2014-01-02 12:00", "INFUSION_DRUG//8"),
        (9, "2014-01-02 13:00", "INFUSION_DRUG//8"),
        (9, "2014-01-03 10:00", "HOSPITAL_DISCHARGE//Home"),
    ]
    folder = write_meds(tmp_path / "meds", events, shards=1)
    (shard,) = (folder / "data").rglob("*.parquet")
    texts = pl.when(pl.col("code") == "INFUSION_DRUG//7").then(pl.lit(" Furosemide ")).when(
        pl.col("time").dt.hour() == 13
    ).then(pl.lit("mystery"))  # fmt: skip
    whole = pl.read_parquet(shard)
    whole.with_columns(texts.alias("text_value")).write_parquet(shard)
    made = prepare("meds", folder, tmp_path / "cohort", reading={"dialect": "eicu"}, store=store).folder
    assert codes_of(Cohort.load(made), "medication") == [("9", "B01A"), ("9", "C03C")]
    (drugs,) = (row for row in json.loads((made / "coverage.json").read_text()) if "medication" in row["map"])
    assert drugs["rows"] == 4
    unmapped = [(row["code"], row["rows"]) for row in drugs["most_frequent_unmapped"]]
    assert unmapped == [("(blank)", 1), ("mystery", 1)]
    whole.write_parquet(shard)
    with pytest.raises(PlmError, match=r"'INFUSION_DRUG\*' from the column 'text_value', which the events do not have"):
        prepare("meds", folder, tmp_path / "other", reading={"dialect": "eicu"}, store=store)


def test_a_discharge_before_its_admission_is_named_by_its_row_among_all_events(
    tmp_path: Path, store: CodeStore
) -> None:
    """The row is that of the file, also where only some of the subjects are read."""
    events: list[Event] = [
        (subject, "2151-01-29 08:00" if code == "HOSPITAL_DISCHARGE//DIED" else time, code)
        for subject, time, code in EVENTS
    ]
    ids = {(2, "HOSPITAL_ADMISSION//URGENT//UNK"): 7, (2, "HOSPITAL_DISCHARGE//DIED"): 7}
    folder = write_meds(tmp_path / "meds", events, visit_ids=ids, shards=1)
    pl.DataFrame({"subject_id": [1, 2], "split": ["train", "held_out"]}).write_parquet(
        folder / "metadata" / "subject_splits.parquet"
    )
    row = [code for _, _, code in events].index("HOSPITAL_DISCHARGE//DIED") + 2
    for splits in ("ignore", "held_out"):
        with pytest.raises(PlmError, match=rf"0\.parquet', row {row}: discharge_time is before admission_time"):
            prepare("meds", folder, tmp_path / "cohort", reading={"subject_splits": splits}, store=store)


def test_a_visit_id_that_no_admission_has_leads_to_no_visit(load: Load) -> None:
    """Not even to the visit in whose time the event falls: the dataset says that it is of another one."""
    cohort = load(visit_ids={(2, "MEDICATION//START//Heparin"): 99})
    assert codes_of(cohort, "medication") == [(FIRST, "C03C"), (SECOND, "A10A")]
    assert cohort.about["rows_without_visit"] == {"train": 2}


def test_a_blank_code_is_refused_with_its_row(tmp_path: Path, store: CodeStore) -> None:
    folder = write_meds(tmp_path / "meds", shards=1)
    (shard,) = (folder / "data").rglob("*.parquet")
    blank = pl.when(pl.int_range(pl.len()) != 5).then("code").alias("code")
    pl.read_parquet(shard).with_columns(blank).write_parquet(shard)
    with pytest.raises(PlmError, match=r"parquet', row 7: column 'code' is blank"):
        prepare("meds", folder, tmp_path / "cohort", store=store)
    assert not (tmp_path / "cohort").exists()


@pytest.mark.parametrize(
    ("events", "options", "sentence"),
    [
        (EVENTS, {"version": "0.2.0"}, r"dataset.json' says MEDS 0.2.0; versions 0.3 and 0.4 are read"),
        (EVENTS[:2], {}, "no shipped dialect suits the codes of this dataset.*--describe"),
        (EVENTS, {"reading": {"dialect": "eicu"}}, "'eicu' finds no .* in this dataset, and the dialect 'mimic4' does"),
        (EVENTS, {"version": "0.41"}, r"dataset.json' says MEDS 0.41"),
        (EVENTS[:2], {"reading": {"dialect": "mimic4"}}, "'mimic4' finds no admissions in this dataset"),
        (EVENTS, {"reading": {"dialect": "nobody"}}, "no MEDS dialect 'nobody'; give one of eicu, mimic4"),
        ([*EVENTS, (1, None, "GENDER//M")], {}, r"1.parquet', row 15: 1 subject has more than one sex"),
        (
            [*EVENTS, (1, "2160-01-01 00:00", "MEDS_BIRTH")],
            {},
            r"1.parquet', row 15: 1 subject has more than one birth",
        ),
        (
            [born_in(1, event) for event in EVENTS],
            {},
            r"1.parquet', row 4: 2 visits begin before the birth or more than 130 years after",
        ),
        (
            EVENTS,
            {"visit_ids": {(s, c): 3 for s, _, c in EVENTS if c.startswith("HOSPITAL_ADMISSION")}},
            "names 1 visit more than once",
        ),
    ],
)
def test_bad_input_ends_in_a_sentence(load: Load, events: list[Event], options: Any, sentence: str) -> None:
    with pytest.raises(PlmError, match=sentence):
        load(events, **options)


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (
            pl.DataFrame({"patient_id": [1], "time": [None], "code": ["x"]}),
            r"0.parquet' has the columns of MEDS 0.2 or older",
        ),
        (pl.DataFrame({"subject_id": [1], "code": ["x"]}), r"0.parquet' has no column 'time'"),
        (
            pl.DataFrame({"subject_id": ["a"], "time": [datetime(2150, 1, 1)], "code": ["x"]}),
            r"column 'subject_id' is String, not a whole number",
        ),
        (
            pl.DataFrame({"subject_id": [1], "time": [datetime(2150, 1, 1)], "code": ["x"]}).with_columns(
                pl.col("time").dt.replace_time_zone("UTC")
            ),
            r"column 'time': its times carry the time zone 'UTC'",
        ),
    ],
)
def test_other_columns_are_refused(tmp_path: Path, store: CodeStore, frame: pl.DataFrame, sentence: str) -> None:
    (tmp_path / "meds" / "data").mkdir(parents=True)
    frame.write_parquet(tmp_path / "meds" / "data" / "0.parquet")
    with pytest.raises(PlmError, match=sentence):
        prepare("meds", tmp_path / "meds", tmp_path / "cohort", store=store)
    assert not (tmp_path / "cohort").exists()


def test_a_dataset_without_shards_is_refused(tmp_path: Path, store: CodeStore) -> None:
    folder = write_meds(tmp_path / "meds", shards=0)
    with pytest.raises(PlmError, match=r"no Parquet file in '.*meds/data'; give the folder of a MEDS dataset"):
        prepare("meds", folder, tmp_path / "cohort", store=store)


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ({"match": "X", "role": "diagnosis", "system": "icd10"}, "needs {code} in 'match'"),
        ({"match": "X//{code}", "role": "diagnosis", "system": "icd11"}, "'icd11' is not a code system of a diagnosis"),
        ({"match": "X", "role": "visit"}, "rules.1.role"),
        ({"match": "X", "role": "birth", "colour": "red"}, "rules.1.colour"),
        ({"match": "X", "role": "birth"}, "no rule has the role 'admission'"),
    ],
)
def test_a_wrong_dialect_is_refused(tmp_path: Path, load: Load, rule: dict[str, str], sentence: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({"name": "wrong", "rules": [rule]}))
    with pytest.raises(PlmError, match=sentence):
        load(reading={"dialect": str(path)})


@pytest.mark.parametrize("task", ["readmission", "length_of_stay", "drug_recommendation"])
@pytest.mark.parametrize("inputs", ["retrospective", "known"])
def test_no_leak(load: Load, task: str, inputs: str) -> None:
    cohort = load()
    assert audit(cohort, find_task(task, cohort), TaskSettings.model_validate({"inputs": inputs})).leaks == []


def test_planted_leaks_are_caught(load: Load) -> None:
    """Codes that carry a visit's id but are dated after its end, or in the next visit, are found by the audit."""
    ids = {(subject, code): 7 for subject, _, code in EVENTS if subject == 2 and code.startswith("HOSPITAL")}
    ids[(1, "HOSPITAL_ADMISSION//EW EMER.//EMERGENCY ROOM")] = 5
    late: list[Event] = [
        (2, "2151-02-03 12:00", "DIAGNOSIS//ICD//10//E119"),
        (2, "2151-02-04 12:00", "MEDICATION//START//Insulin"),
        (1, "2150-03-02 12:00", "MEDICATION//START//Warfarin"),
    ]
    cohort = load([*EVENTS, *late], visit_ids=ids | {(2, late[0][2]): 7, (2, late[1][2]): 7, (1, late[2][2]): 5})
    assert ("7", "49") in codes_of(cohort, "diagnosis")
    assert {("7", "A10A"), ("5", "B01A")} <= set(codes_of(cohort, "medication"))
    found = audit_instances(build_instances(cohort, find_task("length_of_stay", cohort)))
    assert "codes in the visit of their time" in {finding.check for finding in found.leaks}
    assert {finding.check: finding.found for finding in found.findings}["codes dated after discharge"] >= 1
    known = build_instances(cohort, find_task("readmission", cohort), TaskSettings(inputs="known"))
    assert "B01A" not in set(known.inputs("medication").join(cohort.visits, on="visit").filter(visit_id="5")["code"])


def test_columns_are_those_of_the_package_meds() -> None:
    import pyarrow as pa
    from meds import DataSchema

    aligned = DataSchema.align(pl.DataFrame(schema=COLUMNS).to_arrow())
    kinds = {field.name: field.type for field in aligned.schema}
    assert (kinds["subject_id"], kinds["time"], kinds["code"]) == (pa.int64(), pa.timestamp("us"), pa.string())


def test_a_sex_is_one_in_any_case_and_an_age_is_a_number(tmp_path: Path, load: Load) -> None:
    assert load([*EVENTS, (1, None, "GENDER//female")]).patients["sex"].to_list() == ["F", "M"]
    rules = [*find_meds_dialect("mimic4").model_dump()["rules"], {"match": "AGE//{code}", "role": "age"}]
    (tmp_path / "ours.json").write_text(json.dumps({"name": "ours", "rules": rules}))
    reading = {"dialect": str(tmp_path / "ours.json")}
    assert load([*EVENTS, (1, None, "AGE//61.0")], reading=reading).visits["age"].to_list() == [61, 61, 92]
    with pytest.raises(PlmError, match=r"1.parquet', row 15: the age of 1 subject is not a whole number"):
        load([*EVENTS, (1, None, "AGE//sixty")], reading=reading)


def test_a_shard_that_is_missing_is_said(tmp_path: Path, store: CodeStore) -> None:
    folder = write_meds(tmp_path / "meds")
    (folder / "data" / "train" / "1.parquet").rename(folder / "data" / "train" / "2.parquet")
    notes = prepare("meds", folder, tmp_path / "cohort", store=store).about["notes"]
    assert "the parts of '0.parquet' are numbered from 0 to 2, but 1 of these is not there" in notes
    # Times in names do not count the parts.
    assert notes_on_missing_parts([Path("a-1699999999999.parquet"), Path("a-1700000000000.parquet")]) == []


def test_codes_that_no_rule_knows_are_counted(load: Load) -> None:
    def unknown(events: list[Event]) -> int:
        (note,) = [note for note in load(events, reading={"dialect": "mimic4"}).about["notes"] if "no rule of" in note]
        return int(note.split(" event")[0])

    strangers: list[Event] = [(1, "2150-03-01 08:00", "DIAGNOSIS//ICD//11//X"), (1, "2150-03-01 08:00", "SURPRISE")]
    assert unknown([*EVENTS, *strangers]) == unknown(EVENTS) + 2
    with pytest.raises(PlmError, match="column 'code' is blank"):
        load([*EVENTS, (1, "2150-03-01 08:00", " ")], reading={"dialect": "mimic4"})
