"""A whole evaluation: what is written, what it says, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.evaluation.evaluate import evaluate
from patients_like_me.evaluation.predictions import read_predictions
from patients_like_me.evaluation.thresholds import tuned_threshold
from patients_like_me.evaluation.writing import write_evaluation
from patients_like_me.files import read_json, sealed, write_json
from patients_like_me.tasks.metrics import score

MakeRun = Callable[..., Path]
TASKS = ("readmission", "length_of_stay", "drug_recommendation")
FIGURES = ("pr", "roc", "calibration", "strata")


@pytest.fixture(autouse=True)
def own_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CodeStore:
    """Keep the user's installed code tables out of the tests."""
    monkeypatch.setenv("PLM_CODES", str(tmp_path / "codes"))
    return CodeStore.default()


@pytest.mark.parametrize("task", TASKS)
def test_an_evaluation_is_written_whole_and_twice_the_same(make_run: MakeRun, task: str) -> None:
    folder = make_run(task=task)
    found = evaluate(folder, replicates=30)
    first = write_evaluation(found)
    before = {path.name: path.read_bytes() for path in first.iterdir()}
    assert set(before) == {
        "evaluation.json",
        "metrics.csv",
        "subgroups.csv",
        "metrics.tex",
        *(f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png")),
    }
    for name in FIGURES:
        picture = imread(first / f"{name}.png")
        assert min(picture.shape[:2]) > 300
        assert np.ptp(picture[..., :3]) > 0.5
    write_evaluation(evaluate(folder, replicates=30))
    assert {path.name: path.read_bytes() for path in first.iterdir()} == before
    about = json.loads(before["evaluation.json"])
    assert about["instances"] == len(found.predictions)
    names = [measure["name"] for measure in about["measures"]]
    table = pl.read_csv(first / "metrics.csv")
    assert table["name"].to_list() == names
    test = read_predictions(folder).of_split("test")
    for name, value in score(tuple(found.primary), test.labels, test.probabilities).items():
        shown = name if name in names else f"{name}@0.2"
        assert found.measure(shown).value == pytest.approx(value)
        assert table.filter(pl.col("name") == shown)["value"][0] == pytest.approx(value)
    text = before["metrics.tex"].decode()
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    assert "_" not in text.replace(r"\_", "").replace("\\label{tab:" + task, "")


def test_hidden_strata_appear_nowhere_with_numbers(make_run: MakeRun) -> None:
    folder = make_run()
    target = write_evaluation(evaluate(folder, replicates=20))
    table = pl.read_csv(target / "subgroups.csv")
    hidden = table.filter(pl.col("hidden"))
    assert hidden.height
    assert (
        hidden.select("instances", "patients", "value", "low", "high").null_count().sum_horizontal()[0]
        == 5 * hidden.height
    )
    shown = table.filter(~pl.col("hidden"))
    assert shown["instances"].min() >= 11
    assert shown["patients"].min() >= 11
    assert "brier" not in shown["name"].to_list()


def test_thresholds_come_from_validation_alone(make_run: MakeRun) -> None:
    def worse_test(frame: pl.DataFrame) -> pl.DataFrame:
        flipped = pl.when(pl.col("split") == "test").then(pl.col("probabilities").list.eval(1 - pl.element()))
        return frame.with_columns(flipped.otherwise(pl.col("probabilities")).alias("probabilities"))

    runs = [make_run("a"), make_run("b", change=worse_test)]
    found = [evaluate(run, replicates=5).thresholds for run in runs]
    assert found[0] == found[1]
    assert found[0][1] == tuned_threshold(read_predictions(runs[0]).of_split("validation"))


def test_a_moved_cohort_is_found_or_named(make_run: MakeRun, cohort_folder: Path, tmp_path: Path) -> None:
    folder = make_run()
    about = read_json(folder / "run.json", what="run")
    write_json(folder / "run.json", sealed({**about, "cohort_folder": str(tmp_path / ("far-away/" * 40))}))
    found = evaluate(folder, replicates=5)
    assert found.subgroups == ()
    assert "no strata" in found.notes[0]
    write_evaluation(found)
    assert evaluate(folder, cohort=cohort_folder, replicates=5).subgroups
    with pytest.raises(PlmError, match="--cohort"):
        evaluate(folder, cohort=tmp_path / "gone", replicates=5)


def test_one_class_in_test_is_no_crash(make_run: MakeRun) -> None:
    def all_negative(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(pl.Series("label", [[0]] * frame.height, dtype=pl.List(pl.Int64)))

    found = evaluate(make_run(change=all_negative), replicates=10)
    assert found.measure("auroc").value is None
    assert found.measure("auroc").unavailable
    folder = write_evaluation(found)
    assert (folder / "roc.png").is_file()
    assert json.loads((folder / "evaluation.json").read_text())["measures"][0]["value"] is None


def test_no_test_instances_are_refused_and_unknown_measures_named(make_run: MakeRun) -> None:
    folder = make_run(change=lambda frame: frame.filter(pl.col("split") == "validation"))
    with pytest.raises(PlmError, match="no predictions for test"):
        evaluate(folder)
    found = evaluate(folder, split="validation", replicates=5)
    assert write_evaluation(found).name == "evaluation-validation"
    with pytest.raises(PlmError, match="there is no measure 'accuracy'"):
        found.measure("accuracy")


def test_the_interaction_rate_needs_its_table(make_run: MakeRun, own_codes: CodeStore, tmp_path: Path) -> None:
    folder = make_run(task="drug_recommendation")
    assert evaluate(folder, replicates=5).measure("interaction_rate@0.2").value is None
    (tmp_path / "pairs.csv").write_text("atc3_a,atc3_b\nA01A,B03B\nC07A,C09C\n")
    own_codes.add(tmp_path / "pairs.csv")
    found = evaluate(folder, replicates=5)
    # N02B has no interaction and there is no list of covered codes: its pairs are unknown.
    assert 0 < (found.measure("interaction_rate@0.2").value or 0) < 1
    assert 0 < (found.measure("interaction_unknown@0.2").value or 0) < 1
    (tmp_path / "covered.csv").write_text("atc3\nN02B\n")
    own_codes.add(tmp_path / "covered.csv")
    assert evaluate(folder, replicates=5).measure("interaction_unknown@0.2").value == 0.0


def test_the_command_prints_a_table(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    folder = make_run()
    result = CliRunner().invoke(app, ["evaluate", str(folder), "--replicates", "20"])
    assert result.exit_code == 0, result.output
    for words in (
        "95 % interval",
        "AUROC",
        "By stratum",
        "hidden: fewer than 11 patients",
        "4 or more",
        "bootstrap over patients",
    ):
        assert words in result.output
    assert (folder / "evaluation" / "evaluation.json").is_file()
    monkeypatch.setenv("COLUMNS", "80")
    narrow = CliRunner().invoke(app, ["evaluate", str(folder), "--replicates", "2", "--out", str(folder / "narrow")])
    assert narrow.exit_code == 0, narrow.output
    assert "…" not in narrow.output
    assert "not recorded" in narrow.output


@pytest.mark.parametrize("columns", ["80", "120"])
def test_names_of_strata_show_beside_long_names_of_metrics(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    result = CliRunner().invoke(app, ["evaluate", str(make_run(task="drug_recommendation")), "--replicates", "2"])
    table = result.output.split("By stratum")[1]
    assert "4 or more" in table
    assert "not recorded" in table
    assert max(map(len, table.splitlines()[1:5])) <= int(columns)
    assert "in subgroups.csv: the terminal is too narrow" in table


def test_the_command_line_loads_no_slow_library_for_help() -> None:
    import subprocess
    import sys

    program = "import sys, patients_like_me.cli; sys.exit(bool({'polars', 'torch', 'matplotlib', 'numba'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
