"""FHIR R4: encounters become visits by class and hierarchy, code systems are told by their URIs."""

from __future__ import annotations

import copy
import gzip
import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tiny_forms import ICD10, RESOURCES, bundle_of, concept, write_fhir

from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort, Kind
from patients_like_me.records.newcomers import cohort_of_bundle, cohort_of_newcomers
from patients_like_me.records.prepare import describe, prepare
from patients_like_me.records.readers.fhir import _topmost_visits
from patients_like_me.records.source_files import Part, SourceTable
from patients_like_me.tasks.audit import audit, audit_instances
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task
from patients_like_me.tasks.task import TaskSettings

Load = Callable[..., Cohort]
Resources = dict[str, list[dict[str, Any]]]


@pytest.fixture
def load(tmp_path: Path, store: CodeStore) -> Load:
    """Return a function that prepares the tiny export, some resources changed by a function."""

    def load(change: Callable[[Resources], object] = lambda _: None, **reading: str) -> Cohort:
        resources = copy.deepcopy(RESOURCES)
        change(resources)
        folder = write_fhir(tmp_path / f"fhir{len(list(tmp_path.iterdir()))}", resources)
        return Cohort.load(prepare("fhir", folder, folder.with_suffix(".cohort"), reading=reading, store=store).folder)

    return load


def codes_of(cohort: Cohort, kind: Kind) -> list[tuple[str, str]]:
    joined = cohort.codes[kind].join(cohort.visits.select("visit", "visit_id"), on="visit")
    return sorted(joined.select("visit_id", "code").rows())


def test_class_and_hierarchy_decide_what_a_visit_is(load: Load) -> None:
    cohort = load()
    assert cohort.visits["visit_id"].to_list() == ["e1", "e2", "e3"]
    assert cohort.visits["admission_time"].to_list()[:2] == [datetime(2050, 1, 1, 10), datetime(2050, 7, 1, 10)]
    assert cohort.visits["age"].to_list() == [59, 60, 120]
    assert cohort.visits["died"].to_list() == [False, False, True]
    assert cohort.patients.select("subject_id", "sex").rows() == [("a", "F"), ("b", "M")]
    assert "1 encounter is neither a visit nor a part of one" in cohort.about["notes"]
    with_clinic = load(classes="IMP+AMB")
    assert with_clinic.visits["visit_id"].to_list() == ["e1", "e2", "clinic", "e3"]


def test_codes_by_the_uri_of_their_system(load: Load) -> None:
    """Of several codings the one that is known counts; parts of a visit add to it; what did not happen is left out."""
    cohort = load()
    assert codes_of(cohort, "diagnosis") == [("e1", "108"), ("e1", "49"), ("e3", "157")]
    assert codes_of(cohort, "procedure") == [("e1", "58")]
    assert codes_of(cohort, "medication") == [("e1", "C03C"), ("e2", "A10A"), ("e2", "C03C"), ("e3", "B01A")]
    assert cohort.about["rows_without_visit"]["Condition.000.ndjson"] == 1


def test_snomed_through_a_table_of_the_users_own(load: Load, tmp_path: Path) -> None:
    (tmp_path / "map.csv").write_text("snomed,icd10\n73211009,E11.9\n")
    assert ("e2", "49") in codes_of(load(snomed=str(tmp_path / "map.csv")), "diagnosis")
    (tmp_path / "map.csv").write_text("snomed,icd10\n73211009,E11.9\n73211009,E11.9\n73211009,I50.9\n")
    cohort = load(snomed=str(tmp_path / "map.csv"))
    assert ("e2", "49") in codes_of(cohort, "diagnosis")
    assert "1 concept has several codes in 'map.csv': the first one is taken" in cohort.about["notes"]
    with pytest.raises(PlmError, match=r"there is no table of SNOMED CT at '.*nowhere\.csv'"):
        load(snomed=str(tmp_path / "nowhere.csv"))


def test_a_changed_dialect_or_table_of_snomed_is_another_cohort(tmp_path: Path, store: CodeStore) -> None:
    folder, table, dialect = write_fhir(tmp_path / "fhir"), tmp_path / "map.csv", tmp_path / "ours.json"
    table.write_text("snomed,icd10\n73211009,E11.9\n")
    dialect.write_text(json.dumps({"name": "ours"}))
    for name, path, text in (
        ("snomed", table, "snomed,icd10\n73211009,I50.9\n"),
        ("dialect", dialect, json.dumps({"name": "ours", "parts": "leave"})),
    ):
        out, reading = tmp_path / f"{name}-cohort", {name: str(path)}
        prepare("fhir", folder, out, reading=reading, store=store)
        assert prepare("fhir", folder, out, reading=reading, store=store).reused
        path.write_text(text)
        with pytest.raises(PlmError, match=f"was prepared differently: .*{path.name}"):
            prepare("fhir", folder, out, reading=reading, store=store)


def test_the_visit_above_many_parts_is_found_and_only_a_circle_is_called_one() -> None:
    """Far more encounters than a pass for each of them could do in the time."""
    number = 300_000
    rows = {
        "id": pl.int_range(number, eager=True).cast(pl.String),
        "parent": pl.int_range(-1, number - 1, eager=True).cast(pl.String).replace("-1", None),
        "qualifies": pl.int_range(number, eager=True).is_in([3, 7]),
    }
    table = SourceTable((Part(Path("Encounter.ndjson"), pl.LazyFrame(rows), 1),))
    started = time.process_time()
    top = _topmost_visits(pl.DataFrame(rows), table)
    assert top[:3].tolist() == [-1, -1, -1]
    assert set(top[3:].tolist()) == {3}
    # Row 1 leads into a circle of rows 2 and 3.
    circle = pl.DataFrame(rows).with_columns(
        pl.when(pl.col("id").is_in(["0", "2"])).then(pl.lit("1"))
        .when(pl.col("id") == "1").then(pl.lit("2")).alias("parent")
    )  # fmt: skip
    with pytest.raises(PlmError, match="row 2: through partOf, this Encounter is a part of itself"):
        _topmost_visits(circle, table)
    assert time.process_time() - started < 10


def test_a_bundle_gives_what_an_export_gives(load: Load, tmp_path: Path, store: CodeStore) -> None:
    from_lines = load()
    (tmp_path / "bundles").mkdir()
    for name in ("a", "b"):
        (tmp_path / "bundles" / f"{name}.json").write_text(json.dumps(bundle_of(patient=name)))
    # Medications are in both bundles; the second copy of one changes nothing.
    cohort = Cohort.load(prepare("fhir", tmp_path / "bundles", tmp_path / "cohort", store=store).folder)
    for name, table in from_lines.tables().items():
        assert table.equals(cohort.tables()[name]), name


def test_gzipped_files_in_several_parts(load: Load, tmp_path: Path, store: CodeStore) -> None:
    folder = write_fhir(tmp_path / "parts")
    lines = (folder / "Condition.000.ndjson").read_text().splitlines(keepends=True)
    (folder / "Condition.000.ndjson").unlink()
    for part in range(2):
        (folder / f"Condition.{part:03}.ndjson.gz").write_bytes(gzip.compress("".join(lines[part::2]).encode()))
    cohort = Cohort.load(prepare("fhir", folder, tmp_path / "cohort", store=store).folder)
    assert cohort.codes["diagnosis"].equals(load().codes["diagnosis"])


def test_a_dialect_of_ones_own(load: Load, tmp_path: Path) -> None:
    path = tmp_path / "ours.json"
    path.write_text(json.dumps({"name": "ours", "parts": "leave", "systems": {"diagnosis": {"http://our/dx": "icd9"}}}))

    def change(resources: Resources) -> None:
        resources["Condition"][3] = {**resources["Condition"][0], "code": concept("http://our/dx", "4280")}
        resources["Condition"][3]["encounter"] = {"reference": "Encounter/e2"}

    cohort = load(change, dialect=str(path))
    assert codes_of(cohort, "diagnosis") == [("e1", "108"), ("e2", "108"), ("e3", "157")]
    path.write_text(json.dumps({"name": "ours", "systems": {"diagnosis": {"http://our/dx": "icd11"}}}))
    with pytest.raises(PlmError, match=r"'icd11' .* is not a code system of a diagnosis"):
        load(dialect=str(path))


def test_describe_says_what_becomes_of_every_system(tmp_path: Path) -> None:
    rows = {row[:2]: row[2:] for row in describe("fhir", [write_fhir(tmp_path / "fhir")]).rows}
    assert rows["Encounter", "class IMP"] == ("3", "visit")
    assert rows["Condition", ICD10] == ("5", "diagnosis (icd10)")
    assert rows["Condition", "http://snomed.info/sct"][1] == "not read: the dialect does not know this system"


def _line(kind: str, row: int, **changes: Any) -> Callable[[Resources], None]:
    return lambda resources: resources[kind][row].update(changes)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda r: r.pop("Encounter"), "no Encounter resources in"),
        (_line("Encounter", 0, **{"class": [{"coding": []}]}), "Encounter.000.ndjson', row 1: .* form of FHIR R5, and R4"),
        (_line("Encounter", 0, **{"class": "inpatient"}), "row 1: this Encounter has the form of FHIR DSTU2"),
        (_line("Encounter", 2, id="e1"), "Encounter.000.ndjson', row 3: this Encounter's id is in an earlier row"),
        (_line("Patient", 1, id="a"), "Patient.000.ndjson', row 2: this Patient's id is in an earlier row"),
        (_line("Encounter", 2, subject={"reference": "Patient/zz"}), "row 3: its subject is not a Patient of this export"),
        (_line("Encounter", 1, partOf={"reference": "Encounter/zz"}), "row 2: its partOf is not in this export"),
        (_line("Encounter", 0, partOf={"reference": "Encounter/ed"}), "row 1: through partOf, this Encounter is a part of itself"),
        (_line("Encounter", 1, subject={"reference": "Patient/b"}), "row 2: through partOf, it is a part of a visit of another"),
        (_line("Procedure", 0, subject={"reference": "Patient/b"}), r"Procedure.000.ndjson' that belong to a visit \(1\) name another"),
        (lambda r: r.update(Medication=[]), "none of the 1 medication references leads to a Medication"),
        (
            _line("Encounter", 2, period={"start": "2050-07-01T14:00:00Z", "end": "2050-07-04T13:00:00Z"}),
            "Encounter.000.ndjson', row 3: a time with the offset Z, where others have -05:00",
        ),
        (
            _line("MedicationRequest", 1, authoredOn="2050-07-01T16:00:00Z"),
            "MedicationRequest.000.ndjson', row 2: a value of the form '9999-99-99x99:99:99x' is a time of another time zone",
        ),
        (
            _line("MedicationRequest", 1, authoredOn="yesterday"),
            "MedicationRequest.000.ndjson', row 2: a value of the form 'xxxxxxxxx' is not a time",
        ),
        (_line("Encounter", 2, status="abandoned"), "Encounter.000.ndjson', row 3: 'status' must be one of arrived"),
        (_line("Procedure", 0, status="undone"), "Procedure.000.ndjson', row 1: 'status' must be one of in-progress"),
        (_line("Condition", 1, verificationStatus={"text": "no"}), "row 2: 'verificationStatus' must be one of unconf"),
        (_line("Condition", 1, code="I50.9"), "Condition.000.ndjson', row 2: an entry of another form"),
        (_line("Encounter", 2, **{"class": [{"coding": []}]}), "Encounter.000.ndjson', row 3: an entry of another form"),
        (_line("Condition", 2, resourceType="Observation"), "Condition.000.ndjson', row 3: this is not a Condition"),
        (_line("MedicationRequest", 1, resourceType="Task"), "MedicationRequest.000.ndjson', row 2: this is not a Medication"),
        (_line("Encounter", 1, resourceType="Account"), "Encounter.000.ndjson', row 2: this is not an Encounter"),
        (_line("Patient", 1, deceasedDateTime="2050-02-01T12:00:00Z"), "Patient.000.ndjson', row 2: deceasedDateTime is no"),
        (_line("Encounter", 2, period={"start": "yesterday"}), "Encounter.000.ndjson', row 3: period.start is not a time"),
        (_line("Patient", 0, birthDate="15/06/1990"), "Patient.000.ndjson', row 1: birthDate must be a day"),
        (_line("Patient", 0, birthDate="2060-01-01"), "row 1: the age at admission, from birthDate, must be between"),
        (
            _line("Encounter", 0, period={"start": "2050-01-03T10:00:00-05:00", "end": "2050-01-02T11:00:00-05:00"}),
            "Encounter.000.ndjson', row 1: end is before start",
        ),
        (
            # The clinic in row 4, which is no visit, is not meant.
            lambda r: (
                _line("Encounter", 3, period={"start": "2050-09-03T10:00:00-04:00", "end": "2050-09-02T11:00:00-04:00"})(r),
                _line("Encounter", 4, period={"start": "2050-01-30T08:00:00-05:00", "end": "2050-01-29T11:00:00-05:00"})(r),
            ),
            r"Encounter.000.ndjson', row 5: end is before start \(1 such visit",
        ),
    ],
)  # fmt: skip
def test_bad_input_ends_in_a_sentence(load: Load, tmp_path: Path, change: Any, sentence: str) -> None:
    with pytest.raises(PlmError, match=sentence):
        load(change)
    assert not list(tmp_path.glob("*.cohort"))


@pytest.mark.parametrize(
    ("kind", "resource", "state"),
    [
        ("diagnosis", "Condition", {"verificationStatus": {"coding": [{"code": "Refuted"}]}}),
        ("diagnosis", "Condition", {"verificationStatus": {"text": " refuted "}}),
        ("procedure", "Procedure", {"status": "NOT-DONE"}),
        ("medication", "MedicationRequest", {"status": "canceled"}),
        ("medication", "MedicationRequest", {"status": "CANCELLED"}),
    ],
)
def test_what_did_not_happen_is_left_out_however_it_is_written(
    load: Load, kind: Kind, resource: str, state: dict[str, Any]
) -> None:
    def change(resources: Resources) -> None:
        for row in resources[resource]:
            row.update(state)

    left = set(codes_of(load(change), kind))
    assert left < set(codes_of(load(), kind))
    assert resource == "MedicationRequest" or not left


def test_deaths_are_found_however_they_are_written(load: Load) -> None:
    def change(resources: Resources) -> None:
        resources["Encounter"][0]["hospitalization"] = {"dischargeDisposition": {"coding": [{"code": "EXP"}]}}
        resources["Patient"][0]["deceasedBoolean"] = True

    cohort = load(change)
    assert cohort.visits["died"].sum() == 1 + load().visits["died"].sum()

    def without_word(resources: Resources, where: dict[str, Any] | None) -> None:
        resources["Encounter"][4]["hospitalization"] = where

    # An encounter that does not say where it led ends with the death that falls into its days.
    assert load(lambda r: without_word(r, None)).visits["died"].to_list() == [False, False, True]
    own_first = {"dischargeDisposition": {"coding": [{"code": "20-ours"}, {"code": "exp"}]}}
    assert load(lambda r: without_word(r, own_first)).visits["died"].to_list() == [False, False, True]
    for said in (
        {"coding": [{"system": "http://snomed.info/sct", "code": "419099009"}]},
        {"coding": [{"system": "https://www.nubc.org/CodeSystem/PatDischargeStatus", "code": "20"}]},
        {"coding": [{"system": "http://our.hospital", "code": "7", "display": "Patient died"}]},
        {"coding": [{"code": "DIED"}]},
        {"text": "Expired"},
    ):
        there = load(lambda r, said=said: without_word(r, {"dischargeDisposition": said}))  # type: ignore[misc]
        assert there.visits["died"].to_list() == [False, False, True], said
    home = {"dischargeDisposition": {"coding": [{"code": "20", "display": "Home, not dead"}], "text": "home"}}
    elsewhere = load(lambda r: without_word(r, home))
    assert elsewhere.visits["died"].to_list() == [False, False, False]
    assert any(note.startswith("1 visit includes the day on which") for note in elsewhere.about["notes"])
    assert any(note.startswith("1 patient died at a time that is not given") for note in cohort.about["notes"])


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        ("007", "7", "row 1 and row 2: two ids in column 'identifier' differ only in leading zeros"),
        ("p1", " p1", "row 2: a Patient in an earlier row has the same identifier"),
        ("p1", "1.2E+11", "row 2: the id in column 'identifier' was shortened"),
        ("p1", "p2\u200b", None),
    ],
)
def test_identifiers_are_brought_into_one_form(
    load: Load, tmp_path: Path, first: str, second: str, sentence: str | None
) -> None:
    """Unlike the id of a resource, an identifier is whatever a hospital writes."""
    (tmp_path / "ours.json").write_text(json.dumps({"name": "ours", "patient_identifier": "urn:ours"}))

    def change(resources: Resources) -> None:
        for row, value in zip(resources["Patient"], (first, second), strict=True):
            row["identifier"] = [{"system": "urn:ours", "value": value}]

    if sentence is None:
        cohort = load(change, dialect=str(tmp_path / "ours.json"))
        assert cohort.patients["subject_id"].to_list() == ["p1", "p2"]
        assert "1 value of 'subject_id' was brought into the normal form of ids" in cohort.about["notes"]
        return
    with pytest.raises(PlmError, match=rf"Patient\.000\.ndjson', {sentence}"):
        load(change, dialect=str(tmp_path / "ours.json"))


def test_drugs_that_are_contained_mixed_or_forbidden(load: Load) -> None:
    """The reference chooses among contained drugs; a code goes before ingredients; not to give a drug is no drug."""

    def change(resources: Resources) -> None:
        requests = resources["MedicationRequest"]
        requests[0]["doNotPerform"] = True
        requests[1]["medicationReference"] = {"reference": "Medication/outer"}
        requests[3] |= {"medicationReference": {"reference": "#d"}, "contained": [
            {"resourceType": "Medication", "id": name, "code": {"text": text}} for name, text in (("c", "Warfarin"), ("d", "Aspirin"))
        ]}  # fmt: skip
        requests.append({**requests[1], "medicationReference": {"reference": "Medication/coded"}})
        inner, lactose = (
            {"itemReference": {"reference": "Medication/mix"}},
            {"itemCodeableConcept": {"text": "Lactose"}},
        )
        atc = concept("http://www.whocc.no/atc", "N02BE01")
        resources["Medication"] += [
            {"resourceType": "Medication", "id": "outer", "ingredient": [inner]},
            {"resourceType": "Medication", "id": "coded", "code": atc, "ingredient": [lactose]},
        ]
        del resources["MedicationAdministration"]

    cohort = load(change)
    assert codes_of(cohort, "medication") == [
        ("e2", "A10A"), ("e2", "C03C"), ("e2", "N02B"), ("e3", "B01A"), ("e3", "N02B")
    ]  # fmt: skip


def test_references_that_lead_elsewhere_are_counted_and_left_out(load: Load) -> None:
    def change(resources: Resources) -> None:
        for row in (*resources["Condition"], *resources["MedicationRequest"]):
            row["subject"] = {"reference": "Patient/b" if row["encounter"]["reference"].endswith("e3") else "Patient/a"}
        resources["Condition"][0]["subject"] = {"reference": "Patient/b"}
        resources["MedicationRequest"][0]["medicationReference"] = {"reference": "Medication/gone"}

    cohort = load(change)
    assert codes_of(cohort, "diagnosis") == [("e1", "49"), ("e3", "157")]
    assert codes_of(cohort, "medication") == [("e2", "A10A"), ("e2", "C03C"), ("e3", "B01A")]
    said = "1 row of 'Condition.000.ndjson' names another patient than its visit does, and is left out"
    assert said in cohort.about["notes"]
    said = "1 medication reference of MedicationRequest leads to no Medication: its drug is unmapped"
    assert said in cohort.about["notes"]
    assert not [note for note in load().about["notes"] if "to no Medication" in note or "another patient" in note]


def test_a_year_of_birth_is_enough(load: Load) -> None:
    assert load(_line("Patient", 0, birthDate="1990")).visits["age"].to_list() == [60, 60, 120]


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("gzip", "holds 'Condition.000.ndjson' and the same gzipped"),
        ("link", "Condition.000.ndjson' is a link to nothing, not a file"),
        ("mark", "Condition.000.ndjson' begins with a byte order mark"),
    ],
)
def test_odd_files_are_refused(tmp_path: Path, store: CodeStore, what: str, sentence: str) -> None:
    path = write_fhir(tmp_path / "fhir") / "Condition.000.ndjson"
    content = path.read_bytes()
    if what == "gzip":
        path.with_suffix(".ndjson.gz").write_bytes(gzip.compress(content))
    elif what == "link":
        path.unlink()
        path.symlink_to("nowhere")
    else:
        path.write_bytes(b"\xef\xbb\xbf" + content)
    with pytest.raises(PlmError, match=sentence):
        prepare("fhir", path.parent, tmp_path / "cohort", store=store)


def test_a_bad_bundle_is_named(tmp_path: Path, store: CodeStore) -> None:
    for name in ("a", "b"):
        bundle = copy.deepcopy(bundle_of(patient=name))
        if name == "b":
            encounter = next(e["resource"] for e in bundle["entry"] if e["resource"]["resourceType"] == "Encounter")
            encounter["subject"] = {"reference": "Patient/zz"}
        (tmp_path / f"{name}.json").write_text(json.dumps(bundle))
    with pytest.raises(PlmError, match=r"b.json', row 1: its subject is not a Patient"):
        prepare("fhir", tmp_path, tmp_path / "cohort", store=store)
    (tmp_path / "b.json").write_text('{"resourceType": "Bundle", "entry": 5}')
    with pytest.raises(PlmError, match=r"b.json': the entries of this Bundle are not a list"):
        prepare("fhir", tmp_path, tmp_path / "cohort", store=store)


def test_broken_json_is_named_with_its_line(tmp_path: Path, store: CodeStore) -> None:
    folder = write_fhir(tmp_path / "fhir")
    path = folder / "Condition.000.ndjson"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], '{"resourceType": "Condition", nope', *lines[2:]]) + "\n")
    with pytest.raises(PlmError, match=r"Condition.000.ndjson', row 3: not a JSON object"):
        prepare("fhir", folder, tmp_path / "cohort", store=store)
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "b.json").write_text('{"resourceType": "Bundle",\n "entry": [}')
    with pytest.raises(PlmError, match=r"b.json', line 2: not JSON"):
        prepare("fhir", tmp_path / "bundles", tmp_path / "cohort", store=store)
    assert not (tmp_path / "cohort").exists()


def test_a_dialect_that_finds_no_visit_is_refused(load: Load) -> None:
    with pytest.raises(PlmError, match=r"no Encounter of .* is a hospital visit for the dialect 'mimic4'"):
        load(dialect="mimic4")
    with pytest.raises(PlmError, match="there is no FHIR dialect 'nobody'; give one of mimic4, standard"):
        load(dialect="nobody")


@pytest.mark.parametrize("task", ["readmission", "length_of_stay", "drug_recommendation"])
@pytest.mark.parametrize("inputs", ["retrospective", "known"])
def test_no_leak(load: Load, task: str, inputs: str) -> None:
    cohort = load()
    assert audit(cohort, find_task(task, cohort), TaskSettings.model_validate({"inputs": inputs})).leaks == []


def test_planted_leaks_are_caught(load: Load) -> None:
    """A diagnosis recorded, and a drug ordered, after the end of their visit; a drug of the next visit."""

    def plant(resources: Resources) -> None:
        resources["MedicationRequest"][0]["authoredOn"] = "2050-07-02T12:00:00-04:00"

    cohort = load(plant)
    found = audit_instances(build_instances(cohort, find_task("length_of_stay", cohort)))
    assert "codes in the visit of their time" in {finding.check for finding in found.leaks}
    assert {finding.check: finding.found for finding in found.findings}["codes dated after discharge"] >= 1
    known = build_instances(cohort, find_task("readmission", cohort), TaskSettings(inputs="known"))
    assert "C03C" not in set(known.inputs("medication").join(cohort.visits, on="visit").filter(visit_id="e1")["code"])
    late = cohort.codes["diagnosis"].filter(pl.col("code") == "157")
    assert late["time"][0] == datetime(2050, 2, 3, 10)


def test_a_bundle_is_a_newcomer(load: Load, tmp_path: Path) -> None:
    whole = load()
    bundle = bundle_of(patient="a")
    with pytest.warns(UserWarning, match="left out") as said:
        newcomer = cohort_of_newcomers(bundle)
    assert [str(warning.message) for warning in said] == [
        "codes that no map knows are left out: '73211009'",
        "1 resource of the Bundle belongs to no visit and is left out",
    ]
    assert newcomer.visits["visit_id"].to_list() == ["e1", "e2"]
    assert codes_of(newcomer, "medication") == [row for row in codes_of(whole, "medication") if row[0] != "e3"]
    (tmp_path / "a.json").write_text(json.dumps(bundle))
    with pytest.warns(UserWarning, match="no map knows|belongs to no visit"):
        assert cohort_of_bundle(tmp_path / "a.json").visits.equals(newcomer.visits)
    with pytest.raises(PlmError, match=r"^no Patient resources in it"):
        cohort_of_newcomers({"resourceType": "Bundle", "entry": []})


def test_a_part_of_a_mixture_that_is_not_there_is_counted(load: Load) -> None:
    def change(resources: Resources) -> None:
        parts = [{"itemReference": {"reference": "Medication/gone"}}, {"itemCodeableConcept": {"text": "Aspirin"}}]
        resources["Medication"].append({"resourceType": "Medication", "id": "outer", "ingredient": parts})
        resources["MedicationRequest"][1]["medicationReference"] = {"reference": "Medication/outer"}

    notes = load(change).about["notes"]
    assert "1 medication reference of MedicationRequest leads to no Medication: its drug is unmapped" in notes


@pytest.mark.parametrize("resource", ["MedicationRequest", "MedicationAdministration"])
def test_a_time_of_the_wrong_type_is_said(load: Load, resource: str) -> None:
    def change(resources: Resources) -> None:
        row = resources[resource][0]
        if resource == "MedicationRequest":
            row["authoredOn"] = True
        else:
            row["effectivePeriod"]["start"] = True

    def undated(about: dict[str, Any]) -> list[str]:
        return [note for note in about["notes"] if resource in note and note.endswith((" have no time", " has a time"))]

    assert not undated(load().about)
    assert len(undated(load(change).about)) == 1


@pytest.mark.parametrize("gender", ["9999-12-31", "x", "", {"reference": "Patient/zz"}])
def test_a_gender_that_is_none_is_refused_with_its_row(load: Load, gender: Any) -> None:
    with pytest.raises(PlmError, match=r"row 1: gender must be one of male, female, other, unknown"):
        load(lambda resources: resources["Patient"][0].update(gender=gender))


def test_a_blank_status_is_refused_with_its_row(load: Load) -> None:
    with pytest.raises(PlmError, match=r"row 2: 'status' must be one of in-progress, "):
        load(lambda resources: resources["Procedure"][1].update(status=""))


def test_a_gender_may_be_written_in_capitals(load: Load) -> None:
    cohort = load(lambda resources: resources["Patient"][0].update(gender=resources["Patient"][0]["gender"].upper()))
    assert cohort.patients["sex"].equals(load().patients["sex"])
