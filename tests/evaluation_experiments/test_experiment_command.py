from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.catalogue import EXPERIMENTS
from patients_like_me.evaluation.experiments.jobs import Plan


def words_of(changes: dict[str, object], prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, value in changes.items():
        if isinstance(value, dict):
            found += words_of(value, f"{prefix}{name}.")
        elif value is not None:
            found += ["--set", f"{prefix}{name}={value}"]
    return found


def test_list_explains_every_experiment() -> None:
    shown = CliRunner().invoke(app, ["experiment", "list"])
    assert shown.exit_code == 0
    for name in EXPERIMENTS:
        assert name in shown.stdout
    assert "Which training strategy is best" in shown.stdout


def test_plan_only_tells_the_cost_and_writes_nothing(
    cohort_folder: Path, tiny_changes: dict[str, object], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ["experiment", "tau", str(cohort_folder), "--out", str(out), "--plan-only", "--workers", "2"]
    shown = CliRunner().invoke(app, [*words, *words_of(tiny_changes)], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "15 different runs: 0 finished, 0 begun, 15 left" in shown.output
    assert "Preset: quick" in shown.output
    assert "Not as in the paper: the preset is 'quick', the paper's is 'paper'" in shown.output
    assert not out.exists()


def test_a_finished_experiment_is_shown_again_without_training(
    cohort_folder: Path, tiny_changes: dict[str, object], trained_plan: Callable[..., tuple[Plan, Path]], tmp_path: Path
) -> None:
    # The command line has no word for 'none', so the plan is made without it.
    changes = {**tiny_changes, "backbone": {**tiny_changes["backbone"]}}  # type: ignore[dict-item]
    del changes["backbone"]["attention_dropout"]  # type: ignore[attr-defined]
    plan, out = trained_plan("tau", values=("3",), changes=changes, tasks=("length_of_stay",))
    command = ["experiment", "tau", str(cohort_folder), "--out", str(out), "--values", "3", "--seeds", "1"]
    command += ["--task", "length_of_stay", *words_of(changes), "--cache", str(tmp_path)]
    (out / "tau" / "experiment.json").unlink(missing_ok=True)
    shown = CliRunner().invoke(app, command, catch_exceptions=False)
    assert shown.exit_code == 0
    assert "1 run: 1 finished" in shown.output
    assert "| 3 (chosen on validation)" in shown.output
    assert len(plan.jobs) == 1


def test_all_does_what_is_possible_and_names_what_is_not(
    cohort_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLM_BACKBONES", str(tmp_path / "none"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    out = tmp_path / "out"
    command = ["experiment", "all", str(cohort_folder), "--preset", "paper", "--out", str(out)]
    shown = CliRunner().invoke(app, [*command, "--cache", str(tmp_path)], catch_exceptions=False)
    assert shown.exit_code == 1
    assert "not done, none of their backbones" in shown.output
    assert sorted(path.name for path in out.iterdir()) == ["cohorts", "edge-weights"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tau"], "needs a cohort"),
        (["tau", "{cohort}"], "name one with --out"),
        (["sweep", "{cohort}", "--out", "{out}"], "there is no experiment 'sweep'"),
        (["tau", "{out}", "--out", "{out}/new"], "is not a cohort folder"),
        (["tau", "{cohort}", "--out", "{out}"], "does not hold experiments"),
        (["tau", "{cohort}", "--out", "{out}/new", "--backbone", "no-such-model"], "no backbone of the experiment"),
    ],
)
def test_mistakes_end_in_one_sentence(cohort_folder: Path, tmp_path: Path, words: list[str], expected: str) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    filled = [word.format(cohort=cohort_folder, out=tmp_path) for word in words]
    with pytest.raises(PlmError, match=expected):
        CliRunner().invoke(app, ["experiment", *filled], catch_exceptions=False)
