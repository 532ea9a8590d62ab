"""Checks of a bank: a cohort of the same hospital keeps it, one that has moved does not, and small counts stay hidden."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import patients_like_me as plm
from patients_like_me.cli import app
from patients_like_me.errors import PlmError
from patients_like_me.evaluation.bank_check import BankCheck, check_bank
from patients_like_me.evaluation.bank_drift import code_drift
from patients_like_me.files import read_json
from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.run import load_run
from patients_like_me.systems.train import train

SMALL: dict[str, Any] = {
    "own_path": ["linear"],
    "part_settings": {"linear": {"penalties": [30.0], "block_factors": []}},
    "folds": 2,
    "k": [10],
    "powers": [1.0],
    "gate_penalties": [0.03],
    "output_penalties": [None],
    "may_stay_out": False,
}


@pytest.fixture(scope="module")
def trained(make_cohort: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of a hospital that is large enough for a test split to say what is usual."""
    out = tmp_path_factory.mktemp("checked") / "run"
    train(make_cohort(patients=150, seed=31), "readmission", out, system="references", settings=SMALL)
    return out


@pytest.fixture(scope="module")
def same(make_cohort: Callable[..., Path]) -> Path:
    return make_cohort(patients=60, seed=32, prefix="same")


@pytest.fixture(scope="module")
def shuffled(make_cohort: Callable[..., Path]) -> Path:
    """Return patients of the same hospital whose outcomes have nothing to do with their records."""
    return make_cohort(patients=60, seed=33, prefix="other", shuffle_labels=True)


def moved(cohort: Path) -> Cohort:
    """Return a cohort in which four diagnoses have become two others."""
    found = Cohort.load(cohort)
    names = sorted(found.codes["diagnosis"]["code"].unique())
    others = dict(zip(names[:4], names[4:6] * 2, strict=True))
    codes = found.codes["diagnosis"].with_columns(pl.col("code").replace(others)).unique(maintain_order=True)
    return replace(found, codes={**found.codes, "diagnosis": codes}, known_hash="moved", folder=None)


def finding(check: BankCheck, name: str) -> Any:
    return next(each for each in check.findings if each.name == name)


def test_a_cohort_of_the_same_hospital_keeps_the_bank(trained: Path, same: Path) -> None:
    check = check_bank(load_run(trained), Cohort.load(same))
    assert (check.verdict, check.reasons) == ("keep", ())
    assert {each.name for each in check.findings} >= {"moved_codes", "far", "without_references", "rate", "slope"}
    assert check.sentence.startswith("keep")
    assert not any(each.beyond for each in check.findings)
    assert check.patients == 60
    assert check.table().height == len(check.findings)


def test_outcomes_that_no_longer_follow_ask_for_a_training(trained: Path, shuffled: Path) -> None:
    check = check_bank(load_run(trained), Cohort.load(shuffled))
    assert check.verdict == "retrain"
    assert finding(check, "auroc").beyond
    assert not finding(check, "moved_codes").beyond
    assert finding(check, "auroc").title in check.sentence


def test_codes_that_have_moved_ask_for_a_training(trained: Path, same: Path) -> None:
    check = check_bank(load_run(trained), moved(same))
    assert check.verdict == "retrain"
    assert finding(check, "moved_codes").beyond
    gone = [each for each in check.codes if each.now == 0]
    assert len(gone) == 4
    assert all(each.in_bank > 0.1 for each in gone)
    differences = [each.difference for each in check.codes]
    assert differences == sorted(differences, reverse=True)


def test_an_unlabelled_cohort_is_compared_by_last_visits(trained: Path, same: Path) -> None:
    found = Cohort.load(same)
    check = check_bank(load_run(trained), replace(found, labels=found.labels.clear(), known_hash="u", folder=None))
    assert check.verdict == "keep"
    assert check.instances == check.patients == 60
    assert "too little became known" in check.sentence
    assert not {"rate", "slope", "auroc"} & {each.name for each in check.findings}


def test_small_counts_are_hidden_and_few_patients_are_not_compared(
    trained: Path, same: Path, make_cohort: Callable[..., Path]
) -> None:
    run = load_run(trained)
    with pytest.raises(PlmError, match="fewer than 11 patients"):
        check_bank(run, Cohort.load(make_cohort(patients=8, seed=2, prefix="few")))
    with pytest.raises(PlmError, match="nothing has been added"):
        check_bank(run)
    # All but five patients lose their commonest diagnosis: its rate would tell that five have it.
    found = Cohort.load(same)
    codes = found.codes["diagnosis"].join(found.visits.select("visit", "subject"), on="visit", how="left")
    common = codes.group_by("code").agg(pl.col("subject").n_unique()).sort("subject", "code")["code"][-1]
    having = codes.filter(code=common)["subject"].unique().sort()[:5]
    left = codes.filter((pl.col("code") != common) | pl.col("subject").is_in(having.implode())).drop("subject")
    few = replace(found, codes={**found.codes, "diagnosis": left}, known_hash="few", folder=None)
    shift = next(each for each in check_bank(run, few).codes if each.code == common)
    assert shift.now is None
    assert shift.in_bank is not None


def test_chance_between_patients_is_not_drift() -> None:
    """Many visits of few patients say no more than the patients do."""
    from patients_like_me.records.newcomers import cohort_of_newcomers
    from patients_like_me.tasks.instances import instances_to_predict
    from patients_like_me.tasks.registry import find_task

    task = find_task("readmission")

    def of(patients: int, code: str) -> Any:
        people = [
            {"id": str(n), "visits": [{"diagnoses": [code if n % 2 else "I50.9"]} for _ in range(8)]}
            for n in range(patients)
        ]
        return instances_to_predict(cohort_of_newcomers(people), task, task.settings(), every_visit=True)

    bank = of(400, "E11.9")
    assert code_drift(bank, of(4, "I50.9")).moved == ()
    assert len(code_drift(bank, of(200, "I50.9")).moved) == 2
    assert code_drift(bank, of(200, "J18.9")).unknown == pytest.approx(0.5, abs=0.05)


def test_the_latest_addition_is_checked_as_it_was_predicted_before_it_joined(
    trained: Path, same: Path, shuffled: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    run = plm.load_run(folder)
    expected = check_bank(run, Cohort.load(same))
    change = run.bank.add(same, remark="first quarter")
    check = change.run.bank.check()
    assert check.verdict == "keep"
    for name in ("rate", "slope", "auroc", "far"):
        assert finding(check, name).now == pytest.approx(finding(expected, name).now, abs=1e-6)
    assert check.references == len(run.bank)
    # The outcomes of the second addition are judged with those of the first.
    last = change.run.bank.add(shuffled).run.bank
    assert last.check().verdict == "retrain"
    assert last.check().about == "addition 2"


def test_the_bank_is_an_object_of_the_run(trained: Path, same: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    run = plm.load_run(folder)
    assert (run.bank.version, len(run.bank), run.bank.history().height) == (0, run.results.instances["train"], 0)
    change = run.bank.add(str(same), remark="first quarter")
    assert (run.bank.version, run.bank.is_current) == (0, False)
    assert change.run.bank.is_current
    newcomer = {"visits": [{"diagnoses": ["I50.9"]}]}
    assert change.run.predict(newcomer).height == run.predict(newcomer).height == 1
    table = change.run.bank.history()
    assert table["remark"].to_list() == ["first quarter"]
    assert table["references"].to_list() == [len(change.run.bank)]
    summary = change.run.bank.summary()
    assert summary.references == summary.trained + summary.added == len(change.run.bank)
    assert summary.outcomes[0].rate == pytest.approx(float(np.mean(change.run.reference_instances.labels)))
    assert summary.no_calendar == ""
    assert summary.as_json()["additions"][0]["instances"] == summary.added
    assert change.run.bank.drop(1).after == len(run.bank)
    assert run.bank.reopened().bank.version == 2  # type: ignore[attr-defined]


def test_the_commands_of_the_bank(trained: Path, same: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)

    def said(*words: str) -> str:
        result = CliRunner().invoke(app, ["bank", *words])
        assert result.exit_code == 0, result.output
        return result.output

    assert "Version 1 of the bank is in use: addition 1 joined the bank." in said("add", str(folder), str(same))
    found = tmp_path / "check.json"
    assert "Keep: nothing is beyond its limit." in said("check", str(folder), "--out", str(found))
    assert read_json(found, what="check")["verdict"] == "keep"
    assert "addition 1:" in said("history", str(folder))
    assert "Version 2 of the bank is in use" in said("drop", str(folder), "--addition", "1", "--erase")
    assert "left the bank" in said("history", str(folder))
    ids = Cohort.load(same).patients["subject_id"].to_list()
    everything = said("history", str(folder)) + said("check", str(folder), str(same))
    assert not [name for name in ids if name in everything]
