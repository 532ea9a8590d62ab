"""What an attack on the server once found: each is held here by a test of its own."""

from __future__ import annotations

import os
import threading
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from patients_like_me.errors import PlmError
from patients_like_me.records.newcomers import cohort_of_newcomers
from patients_like_me.serve.access import Gate, TokenFile
from patients_like_me.serve.patients import PatientStore
from patients_like_me.serve.state import ServeState
from patients_like_me.tasks.one_instance import diagnosis_set_of_one


def test_the_limit_of_codes_holds_for_one_patient(served: Any) -> None:
    visit = {kind: ["own:sepsis"] * 500 for kind in ("diagnoses", "procedures", "medications")}
    person = {"visits": [visit] * 14}
    for path in ("predict", "patients"):
        for body in (person, {"patients": [person]}):
            answer = served.client.post(f"/api/v1/{path}", json=body)
            assert answer.status_code == 422
            assert "more than 20,000 codes" in answer.text


def test_notes_on_one_patient_are_on_no_other_page(served: Any) -> None:
    people = [
        {"id": "zoe", "visits": [{"diagnoses": ["own:sepsis", "ZZFREETEXT"]}]},
        {"id": "ada", "visits": [{"diagnoses": ["own:sepsis"]}]},
    ]
    added = served.client.post("/api/v1/patients", json={"patients": people}).json()
    zoe, ada = added["pseudonyms"]

    assert added["notes"] == ["codes that no map knows are left out: 'ZZFREETEXT'"]
    assert "ZZFREETEXT" in served.client.get(f"/patients/{zoe}").text
    assert "ZZFREETEXT" not in served.client.get(f"/patients/{ada}").text
    assert served.state.notes(ada) == ()


def test_the_report_is_made_again_for_another_bank(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count(1)
    monkeypatch.setattr("patients_like_me.report.run_page.report_run", lambda folder, cohort: next(numbers))
    current = SimpleNamespace(version="1", run=SimpleNamespace(folder="run", moved_cohort=None))
    state: Any = SimpleNamespace(_reporting=threading.Lock(), _report=None, model=SimpleNamespace(current=current))

    assert [ServeState.run_report(state), ServeState.run_report(state)] == [1, 1]
    current.version = "2"
    assert ServeState.run_report(state) == 2


def test_an_id_that_looks_like_one_of_the_bank_is_not_compared_with_it(served: Any) -> None:
    model = served.state.model.current
    opened = model.answering.opened
    subject = next(iter(opened.subjects))
    for name in (subject, subject.swapcase(), f"0{subject}" if subject[0].isdigit() else subject.upper()):
        instances = model.instances_of(cohort_of_newcomers({"id": name, "visits": [{"diagnoses": ["own:sepsis"]}]}))
        found = opened.numbered(instances, diagnosis_set_of_one(instances))
        assert found.patients.tolist() == [opened.subjects[subject]]


def test_a_fault_that_is_no_exception_is_answered(served: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def panics(*_: Any) -> None:
        raise pl.exceptions.PanicException("smith-4711")

    monkeypatch.setattr(served.state, "search_codes", panics)
    answer = served.client.get("/api/v1/codes", params={"q": "x"})

    assert answer.status_code == 500
    assert "smith" not in answer.text + caplog.text


@pytest.mark.parametrize("pseudonym", ["P" + "9" * 5000, "P0", "P01", "P\u0661", "N" + "9" * 5000, "P99999999"])
def test_a_pseudonym_of_another_form_is_not_found(served: Any, pseudonym: str) -> None:
    assert served.client.get(f"/patients/{pseudonym}").status_code == 404
    assert served.client.get(f"/patients/{pseudonym}/file").status_code == 404


@pytest.mark.parametrize(
    "content",
    [
        b'{"tokens": [{"name": "x", "roles": ["read"], "sha256": "%s", "created": ""}]}' % ("\u00e9" * 64).encode(),
        b'{"tokens": null}',
        b'{"tokens": [1]}',
        b"\xff\xfe",
        b"[" * 100_000,
        None,
    ],
)
def test_a_damaged_file_of_tokens_does_not_lock_out_the_owner(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokens.json"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    gate = Gate(TokenFile(path))

    found = gate.by_token(gate.own)
    assert found is not None
    assert found.name == "owner"
    assert gate.by_token("x") is None
    with pytest.raises(PlmError, match="file of tokens"):
        TokenFile(path).tokens()


@pytest.mark.parametrize("name", ["owner", "nobody", "Owner"])
def test_names_of_the_access_log_are_no_names_of_tokens(tmp_path: Path, name: str) -> None:
    with pytest.raises(PlmError, match="the access log uses this name"):
        TokenFile(tmp_path / "tokens.json").add(name, ["read"])


def test_a_list_that_is_cut_has_the_new_patients_and_says_so(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patients_like_me.serve.listing.MOST_LISTED", len(served.state.patients) - 2)
    (name,) = served.state.add_patients({"visits": [{"diagnoses": ["own:sepsis"]}]})

    listed = served.client.get("/api/v1/worklist").json()
    assert listed["not_listed"] == 3
    assert name in [row["pseudonym"] for row in listed["patients"]]
    assert "3 patients of today&#39;s cohort are not on this list" in served.client.get("/").text.replace("'", "&#39;")
    served.state.forget(name)


def test_new_patients_are_named_first() -> None:
    store = PatientStore(cohort_of_newcomers({"visits": [{"diagnoses": ["I10"]}]}))
    store.add(cohort_of_newcomers({"visits": [{"diagnoses": ["I10"]}]}))
    assert list(store.names()) == ["N1", "P1"]


def test_a_run_folder_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    try:
        ServeState(tmp_path / os.fsdecode(b"caf\xe9"))
        said = "nothing"
    except PlmError as refused:
        # Half a character cannot be sent to another process, so what was said is compared in ASCII.
        said = ascii(str(refused))
    assert "not written in UTF-8" in said
