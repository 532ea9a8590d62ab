"""The public face: the names of the package, objects and paths alike, and newcomers as plain dicts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tiny_forms import bundle_of
from tiny_runs import write_hospital

import patients_like_me as plm
from patients_like_me.errors import PlmError
from patients_like_me.graph.bank import Bank
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.records.newcomers import cohort_of_newcomers
from patients_like_me.runs.run import load_run as load_run_record

FinishedRun = Callable[..., Path]
DIAGNOSES = ["own:sepsis", "own:pneumonia", "own:diabetes", "own:asthma", "own:anemia", "own:stroke"]
ADA: dict[str, Any] = {
    "id": "ada",
    "age": 71,
    "sex": "F",
    "visits": [
        {"admission": "2024-05-03", "discharge": "2024-05-09", "diagnoses": DIAGNOSES[:4]},
        {"admission": "2024-06-01", "diagnoses": DIAGNOSES, "medications": ["own:heparin"]},
    ],
}


def test_every_public_name_is_there_and_nothing_else() -> None:
    assert set(plm.__all__) == {"Cohort", "compare", "evaluate", "explain", "load_run", "prepare", "train"}
    assert set(plm.__all__) <= set(dir(plm))
    for name in plm.__all__:
        assert callable(getattr(plm, name))
    with pytest.raises(AttributeError, match="no attribute 'treat'"):
        plm.treat  # noqa: B018


def test_the_import_takes_no_time() -> None:
    program = "import time; begun = time.process_time(); import patients_like_me; print(time.process_time() - begun)"
    found = [
        float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(found) < 0.2


def test_from_tables_to_a_page_in_a_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLM_CODES", str(tmp_path / "codes"))
    cohort = plm.prepare("tables", str(write_hospital(tmp_path / "tables", patients=30)), out=str(tmp_path / "cohort"))
    assert cohort.folder == tmp_path / "cohort"
    again = plm.prepare("tables", [tmp_path / "tables"], out=tmp_path / "cohort")
    assert again.hash == cohort.hash
    first = plm.train(cohort, task="readmission", system="logistic", out=tmp_path / "a")
    second = plm.train(str(cohort.folder), task="readmission", system="frequency", out=str(tmp_path / "b"))
    assert first.is_finished
    assert repr(second) == f"<run '{tmp_path / 'b'}': readmission, frequency, finished>"
    assert plm.load_run(tmp_path / "a").record == first.record
    compared = plm.compare([first, tmp_path / "b"], replicates=20)
    assert set(compared.table["row"]) == {"logistic", "frequency"}
    assert json.loads(compared.json())["rows"][1]["name"] == "frequency"
    assert "difference from logistic" in compared.markdown()
    assert compared.save(tmp_path / "compared.html").read_text().startswith("<!DOCTYPE html>")
    found = first.predict(ADA)
    assert found.columns == ["instance_id", "subject_id", "probability of readmission"]
    with pytest.raises(PlmError, match="which has no references"):
        first.explain(ADA)
    with pytest.raises(PlmError, match="in memory only"):
        plm.train(cohort_of_newcomers(ADA), task="readmission", system="logistic", out=tmp_path / "c")


def test_an_evaluation_is_a_table_a_page_and_numbers(finished_run: FinishedRun) -> None:
    run = plm.load_run(finished_run(references="bank"))
    found = run.evaluate(replicates=20)
    assert found.table.filter(pl.col("name") == "auprc")["value"].is_not_null().all()
    assert {"stratum", "patients"} <= set(found.subgroups.columns)
    assert json.loads(found.json())["split"] == "test"
    assert "## Calibration" in found.markdown()
    assert "Readmission: evaluation of a run (vem)" in found.html()
    by_path = plm.evaluate(run.folder, replicates=20)
    assert by_path.table.equals(found.table)
    assert plm.evaluate(load_run_record(run.folder), split="validation", replicates=20).evaluation.split == "validation"
    with pytest.raises(PlmError, match="no split 'exam'"):
        run.evaluate(split="exam")


def test_an_instance_of_the_run_is_explained(finished_run: FinishedRun, tmp_path: Path) -> None:
    run = plm.load_run(finished_run(references="bank"))
    page = run.explain(example=3)
    assert page.references.height == len(page.explanation.references)
    assert page.references["importance"].abs().arg_max() == 0
    assert "test patient 3" in page.html()
    assert page.json() == plm.explain(run.folder, example=3).json()
    changed = run.explain(example=3, tau=1).explanation.what_if
    assert changed is not None
    assert page.save(tmp_path / "page.md").read_text() == page.markdown()
    with pytest.raises(PlmError, match=r"must end in \.html, \.json or \.md"):
        page.save(tmp_path / "page.pdf")


def test_every_part_of_an_open_run_is_read_once(finished_run: FinishedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(owner: Any, name: str) -> None:
        honest = getattr(owner, name)

        def call(*given: Any, **options: Any) -> Any:
            read.append(f"{owner.__name__}.{name}")
            return honest(*given, **options)

        monkeypatch.setattr(owner, name, call)

    run = plm.load_run(finished_run(references="bank"))
    ada = cohort_of_newcomers(ADA)
    for owner, name in ((PatientsLikeMeModel, "from_pretrained"), (Bank, "load"), (plm.Cohort, "load")):
        counted(owner, name)
    run.predict(ada)
    run.references(ada)
    run.explain(ada)
    run.explain(example=1, remove=["sepsis"], tau=2)
    run.evaluate(replicates=5)
    plm.load_run(run).predict(ada)
    assert sorted(read) == ["Bank.load", "Cohort.load", "PatientsLikeMeModel.from_pretrained"]


@pytest.mark.parametrize("references", ["bank", "cohort"])
def test_a_dict_is_predicted_and_explained(references: str, finished_run: FinishedRun) -> None:
    run = plm.load_run(finished_run(references=references))
    predicted = run.predict(ADA)
    page = run.explain(ADA)
    assert predicted["subject_id"].to_list() == ["ada"]
    assert page.probability == pytest.approx(predicted["probability of readmission"][0], abs=1e-6)
    assert page.references.height == min(10, predicted["references"][0]) > 0
    assert page.references["outcome"].is_not_null().all()
    assert run.references(ADA).height == page.references.height
    html = page.html()
    assert "female, 71 years, 2 visits" in html
    assert "ada" not in re.findall(r"[a-z]+", html)
    assert not re.search(r"20\d\d-\d\d-\d\d", html)
    without = run.explain(ADA, remove=["sepsis"]).explanation.what_if
    assert without is not None
    shorter = {**ADA, "visits": [*ADA["visits"][:1], {**ADA["visits"][1], "diagnoses": DIAGNOSES[1:]}]}
    # Sepsis is in the earlier visit too, so there it must go as well to be the same person.
    shorter["visits"][0] = {**ADA["visits"][0], "diagnoses": DIAGNOSES[1:4]}
    assert without.after.probability == pytest.approx(run.explain(shorter).probability, abs=1e-6)


def test_every_form_of_newcomers_is_the_same(finished_run: FinishedRun, tmp_path: Path) -> None:
    run = plm.load_run(finished_run(references="bank"))
    expected = run.predict(ADA)
    visits = pl.DataFrame(
        {
            "subject_id": ["ada"] * 2,
            "visit_id": ["newcomer-1/visit-1", "newcomer-1/visit-2"],
            "order": ["1", "2"],
            "admission_time": ["2024-05-03", "2024-06-01"],
            "discharge_time": ["2024-05-09", None],
            "sex": ["F", "F"],
            "age": [None, "71"],
        }
    )
    events = pl.DataFrame(
        [("newcomer-1/visit-1", "diagnosis/own", code[4:]) for code in DIAGNOSES[:4]]
        + [("newcomer-1/visit-2", "diagnosis/own", code[4:]) for code in DIAGNOSES]
        + [("newcomer-1/visit-2", "medication/own", "heparin")],
        schema=["visit_id", "kind", "code"],
        orient="row",
    )
    for name, frame in (("visits", visits), ("events", events)):
        frame.write_csv(tmp_path / f"{name}.csv")
    cohort = plm.prepare("tables", tmp_path, out=tmp_path / "cohort")
    for form in ([ADA], {"visits": visits, "events": events}, cohort, cohort.folder, str(cohort.folder)):
        assert run.predict(form).equals(expected)


def test_a_fhir_bundle_is_predicted(finished_run: FinishedRun, tmp_path: Path) -> None:
    run = plm.load_run(finished_run(references="bank"))
    bundle = bundle_of(patient="b")
    predicted = run.predict(bundle)
    assert predicted["subject_id"].to_list() == ["b"]
    (tmp_path / "b.json").write_text(json.dumps(bundle))
    assert run.predict(tmp_path / "b.json").equals(predicted)


def test_several_newcomers_need_a_choice(finished_run: FinishedRun) -> None:
    run = plm.load_run(finished_run(references="bank"))
    two = [ADA, {**ADA, "id": "bea", "sex": "M"}]
    assert run.predict(two).height == 2
    with pytest.raises(PlmError, match="a number from 1 to 2"):
        run.explain(two)
    assert "male, 71" in run.explain(two, example=2).explanation.patient.about
    with pytest.raises(PlmError, match="no example 3 among the new patients"):
        run.explain(two, example=3)
    with pytest.raises(PlmError, match="not that of a new patient's last visit"):
        run.explain(two, instance="newcomer-1/visit-1")


@pytest.mark.parametrize("task", ["readmission", "drug_recommendation"])
def test_a_newcomer_without_any_code_is_predicted_from_what_there_is(task: str, finished_run: FinishedRun) -> None:
    run = plm.load_run(finished_run(task, references="bank"))
    nothing = {"age": 40, "visits": [{"admission": "2024-06-01"}]}
    predicted = run.predict(nothing)
    assert predicted["references"].to_list() == [0]
    assert predicted.select(pl.col("^probability of .*$").is_between(0, 1)).row(0) == (True,) * len(run.output_labels)
    page = run.explain(nothing)
    assert page.references.is_empty()
    assert page.explanation.support.is_missing


@pytest.mark.parametrize(
    ("newcomers", "words"),
    [
        (3, "cannot be of the type 'int'"),
        ([], "no newcomer is given"),
        ([3], "not a dict"),
        ({"age": 4}, "'visits'"),
        ({"visits": pl.DataFrame({"subject_id": ["a"], "visit_id": ["v"]})}, "'events' is missing"),
        ("no-such-folder", "is not a cohort folder"),
    ],
)
def test_what_is_no_newcomer_is_refused(newcomers: Any, words: str, finished_run: FinishedRun) -> None:
    with pytest.raises(PlmError, match=words):
        plm.load_run(finished_run(references="bank")).predict(newcomers)


def test_a_system_that_explains_itself_does_so_in_python_too(cohort_folder: Path, tmp_path: Path) -> None:
    settings = {"epochs": 2, "patience": 2}
    run = plm.train(cohort_folder, task="readmission", system="retain", settings=settings, out=tmp_path / "retain")
    page = run.explain(example=1)
    assert json.loads(page.json())["found"]["tables"]
    assert page.save(tmp_path / "page.html").read_text() == page.html()
    with pytest.raises(PlmError, match="without references"):
        run.explain(ADA)


def test_a_run_whose_references_bring_outcomes_is_explained_in_python_too(cohort_folder: Path, tmp_path: Path) -> None:
    small = {"own_path": ["linear"], "k": [10], "powers": [1.0], "gate_penalties": [0.1], "output_penalties": [None]}
    train = partial(plm.train, cohort_folder, task="readmission", system="references")
    run = train(settings={**small, "may_stay_out": False}, out=tmp_path / "references")
    page = run.explain(example=1)
    assert page.references.height > 0
    assert run.explain(example=1, drop="R1").explanation.what_if is not None
    # Where validation leaves the references out there is a page, too: it shows similar patients, who are not used.
    closed = train(settings={**small, "control": "no_references"}, out=tmp_path / "closed")
    for shown in (closed.explain(example=1), closed.explain(ADA)):
        assert {reference.direction for reference in shown.explanation.references} == {"not used"}
    assert "without references" in closed.name


def test_what_is_printed_holds_no_patient(finished_run: FinishedRun, cohort_folder: Path) -> None:
    cohort = plm.Cohort.load(cohort_folder)
    run = plm.load_run(finished_run())
    for shown in (repr(cohort), repr(run), repr(run.explain(example=1)), repr(run.evaluate(replicates=5))):
        assert len(shown) < 200
        assert not any(name in shown for name in cohort.patients["subject_id"])
    with pytest.raises(PlmError, match="several runs"):
        plm.compare(str(run.folder))  # type: ignore[arg-type]


def test_newcomers_come_back_in_the_order_given(finished_run: FinishedRun) -> None:
    run = plm.load_run(finished_run(references="bank"))
    people = [{**ADA, "id": name, "age": age} for name, age in (("zoe", 30), ("ada", 71), ("10", 45), ("9", 46))]
    found = run.predict(people)
    assert found["subject_id"].to_list() == ["zoe", "ada", "10", "9"]
    alone = [run.predict(person)["probability of readmission"].item() for person in people]
    assert found["probability of readmission"].to_list() == pytest.approx(alone, abs=1e-6)
    unnamed = [{**ADA, "id": None, "age": 20 + place} for place in range(12)]
    assert run.predict(unnamed)["subject_id"].to_list() == [f"newcomer-{place}" for place in range(1, 13)]
    shown = [run.explain(people, example=place).probability for place in (1, 2)]
    assert shown == pytest.approx(alone[:2], abs=1e-6)
    with pytest.raises(PlmError, match="the id of an earlier one"):
        run.predict([{**ADA, "id": "1"}, {**ADA, "id": "1.0"}])
