"""New patients explained: the same prediction and references as in the run, and what a page may say of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tiny_runs import write_hospital
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.explanation.explain import explain
from patients_like_me.explanation.newcomers import reference_table, scene_of_newcomers
from patients_like_me.explanation.scene import Scene, chosen_row, set_scene
from patients_like_me.explanation.what_if import Change
from patients_like_me.records.cohort import KINDS, Cohort
from patients_like_me.records.prepare import prepare
from patients_like_me.runs.run import load_run
from patients_like_me.systems.predictor import Predictor

FinishedRun = Callable[..., Path]
TASKS = ("readmission", "length_of_stay", "drug_recommendation")


def cohort_of_patients(cohort: Cohort, subjects: list[int]) -> Cohort:
    """Return some patients of a cohort as a cohort of their own, as a hospital would send them."""
    visits = cohort.visits.filter(pl.col("subject").is_in(subjects))
    visit_of = {old: new for new, old in enumerate(visits["visit"].to_list())}
    subject_of = {old: new for new, old in enumerate(subjects)}

    def numbered(frame: pl.DataFrame, column: str, numbers: dict[int, int]) -> pl.DataFrame:
        return frame.with_columns(pl.col(column).replace_strict(numbers, return_dtype=pl.UInt32))

    return replace(
        cohort,
        patients=numbered(cohort.patients.filter(pl.col("subject").is_in(subjects)), "subject", subject_of),
        visits=numbered(numbered(visits, "visit", visit_of), "subject", subject_of),
        codes={
            kind: numbered(
                cohort.codes[kind].filter(pl.col("visit").is_in(visits["visit"].implode())), "visit", visit_of
            )
            for kind in KINDS
        },
        labels=cohort.labels.clear(),
        known_hash="",
        folder=None,
    )


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the cohort folder of six patients whom no run has seen."""
    folder = tmp_path_factory.mktemp("strangers")
    source = write_hospital(folder / "tables", patients=6, seed=9, prefix="stranger")
    return prepare("tables", source, folder / "cohort", store=CodeStore(folder / "codes")).folder


def last_rows(scene: Scene) -> dict[int, int]:
    """Return the row of the last instance of every patient of the split, by the patient's number."""
    frame = scene.instances.frame
    last = scene.cohort.visits.group_by("subject").agg(pl.col("visit").max())
    own = frame.filter(pl.col("instance").is_in(pl.Series(scene.own_rows).implode()))
    kept = own.join(last, on=["subject", "visit"], how="inner").sort("subject")
    return dict(zip(kept["subject"].to_list(), kept["instance"].to_list(), strict=True))


@pytest.mark.parametrize("task", TASKS)
def test_a_test_patient_as_a_newcomer_gets_what_the_run_gave(task: str, finished_run: FinishedRun) -> None:
    folder = finished_run(task, references="bank")
    own = set_scene(load_run(folder))
    rows = last_rows(own)
    new = scene_of_newcomers(load_run(folder), cohort_of_patients(own.cohort, list(rows)))
    compared = 0
    for example, row in enumerate(rows.values(), start=1):
        expected = explain(own, row, show_ids=True)
        found = explain(new, chosen_row(new, example=example), show_ids=True)
        assert found.split == "new"
        assert found.prediction.target_logit == pytest.approx(expected.prediction.target_logit, abs=1e-5)
        assert found.prediction.answer == expected.prediction.answer
        assert [(each.person.instance_id, each.weight, each.outcome) for each in found.references] == [
            (each.person.instance_id, each.weight, each.outcome) for each in expected.references
        ]
        for ours, theirs in zip(found.references, expected.references, strict=True):
            assert ours.importance == pytest.approx(theirs.importance, rel=1e-3, abs=1e-6)
            assert ours.codes == theirs.codes
        assert [each.person for each in found.counter_references] == [
            each.person for each in expected.counter_references
        ]
        assert found.patient == expected.patient
        compared += len(found.references)
    assert compared


@pytest.mark.parametrize("strategy", ["vem", "lm_only"])
@pytest.mark.parametrize("references", ["cohort", "bank"])
def test_the_page_says_what_predict_says(
    references: str, strategy: str, finished_run: FinishedRun, strangers: Path
) -> None:
    run = load_run(finished_run(references=references, strategy=strategy))
    cohort = Cohort.load(strangers)
    scene = scene_of_newcomers(run, cohort)
    predicted = Predictor.load(run).predict(cohort)
    for example, (probabilities, linked) in enumerate(predicted.select("probabilities", "references").iter_rows(), 1):
        row = chosen_row(scene, example=example)
        assert scene.probabilities(scene.node_of_row(row)) == pytest.approx(probabilities, abs=1e-6)
        found = explain(
            scene,
            row,
            change=Change(remove=("sepsis",)) if "sepsis" in scene.codes_of(row, "diagnosis") else Change(tau=1),
        )
        assert len(found.references) == min(linked, 10)
        assert all(reference.outcome for reference in found.references)
        assert found.what_if is not None
        assert found.what_if.before.target_logit == pytest.approx(found.prediction.target_logit)
    assert predicted["references"].sum()


def test_a_patient_of_the_bank_who_comes_again_is_not_an_own_reference(finished_run: FinishedRun) -> None:
    run = load_run(finished_run(references="bank"))
    subjects = run.instances.frame.filter(pl.col("split") == "train")["subject"].unique(maintain_order=True).to_list()
    scene = scene_of_newcomers(run, cohort_of_patients(run.cohort, subjects[:12]))
    seen = 0
    for example in range(1, 13):
        found = explain(scene, chosen_row(scene, example=example), show_ids=True, change=Change(tau=1))
        others = [each.person.subject_id for each in (*found.references, *found.counter_references)]
        assert found.patient.subject_id not in others
        seen += len(others)
    table = reference_table(scene)
    joined = table.join(
        run.cohort.visits.join(run.cohort.patients, on="subject").select("visit_id", "subject_id"),
        left_on="instance_id",
        right_on="visit_id",
    )
    assert seen
    assert joined.height == table.height > 0
    assert joined.filter(pl.col("subject_id") == pl.col("reference_subject_id")).is_empty()


def test_what_if_embeds_the_newcomer_again(finished_run: FinishedRun, strangers: Path) -> None:
    run = load_run(finished_run(references="bank"))
    scene = scene_of_newcomers(run, Cohort.load(strangers))
    row = chosen_row(scene, example=1)
    # Removing a diagnosis and adding it again is no change at all.
    code = scene.codes_of(row, "diagnosis")[0]
    found = explain(scene, row, change=Change(remove=(code,)))
    assert found.what_if is not None
    assert found.what_if.after.target_logit != pytest.approx(found.what_if.before.target_logit, abs=1e-9)
    again = scene.model.embed(scene.instances, [row])[0].numpy()
    np.testing.assert_allclose(again, scene.embeddings[scene.node_of_row(row)].numpy(), atol=1e-5)


def test_references_are_listed_without_the_cohort_of_the_run(
    finished_run: FinishedRun, strangers: Path, tmp_path: Path
) -> None:
    run = replace(load_run(finished_run(references="bank")), moved_cohort=tmp_path / "gone")
    scene = scene_of_newcomers(run, Cohort.load(strangers), bank_only=True)
    table = reference_table(scene)
    known = run.graph_bank.instances.with_columns(
        pl.col("label").list.eval(pl.element().replace_strict(dict(enumerate(run.label_vocabulary)))).alias("expected")
    )
    matched = table.join(known, left_on="reference_id", right_on="instance_id")
    assert matched.height == table.height > 0
    assert matched["outcome"].to_list() == matched["expected"].to_list()
    assert table.group_by("instance_id").agg(pl.col("cosine").is_sorted(descending=True))["cosine"].all()
    with pytest.raises(PlmError, match="is not in"):
        scene_of_newcomers(run, Cohort.load(strangers))


def test_the_command_explains_a_cohort_of_newcomers(
    finished_run: FinishedRun, strangers: Path, cohort_folder: Path, tmp_path: Path
) -> None:
    run = finished_run(references="bank")
    out = tmp_path / "page.html"
    words = ["explain", str(run), "--cohort", str(strangers), "--example", "2", "--out", str(out)]
    finished = CliRunner().invoke(app, words)
    assert finished.exit_code == 0, finished.output
    page = out.read_text()
    assert "new patient 2" in page
    for secret in ("stranger", *Cohort.load(cohort_folder).visits["visit_id"].to_list()[:40]):
        assert secret not in page + finished.output
    assert not re.search(r"\b(19|20|21)\d\d-\d\d-\d\d\b", page)
    # The run's own cohort under another name is no cohort of newcomers.
    own = CliRunner().invoke(app, ["explain", str(run), "--cohort", str(cohort_folder), "--example", "2"])
    assert own.exit_code == 0, own.output
    assert (run / "explanations" / "test-2.html").is_file()
    both = CliRunner().invoke(app, [*words, "--trained-on", str(cohort_folder)])
    assert both.exit_code == 0, both.output
    several = CliRunner().invoke(app, words[:4])
    assert "a number from 1 to 6" in str(several.exception)


def test_the_references_of_a_prediction_can_be_written(
    finished_run: FinishedRun, strangers: Path, tmp_path: Path
) -> None:
    words = ["predict", str(finished_run(references="bank")), str(strangers), "--out", str(tmp_path / "p.parquet")]
    finished = CliRunner().invoke(app, [*words, "--references", str(tmp_path / "r.parquet")])
    assert finished.exit_code == 0, finished.output
    predicted, listed = pl.read_parquet(tmp_path / "p.parquet"), pl.read_parquet(tmp_path / "r.parquet")
    counted = listed.group_by("instance_id").len("listed")
    both = predicted.join(counted, on="instance_id", how="left").fill_null(0)
    assert both["listed"].to_list() == [min(number, 10) for number in both["references"]]
