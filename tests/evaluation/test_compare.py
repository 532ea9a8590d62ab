"""Comparisons: the same instances, paired differences, seeds in one row, and refusals with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.errors import PlmError
from patients_like_me.evaluation.compare import Cell, Row, compare
from patients_like_me.evaluation.comparison_files import comparison_table, write_comparison
from patients_like_me.evaluation.evaluate import evaluate
from patients_like_me.evaluation.intervals import resamples
from patients_like_me.evaluation.predictions import read_predictions
from patients_like_me.files import read_json, sealed, write_json

MakeRun = Callable[..., Path]


@pytest.fixture(autouse=True)
def own_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's installed code tables out of the tests."""
    monkeypatch.setenv("PLM_CODES", str(tmp_path / "codes"))


def test_values_equal_the_single_evaluations_and_a_better_run_is_found(make_run: MakeRun) -> None:
    poor, good = make_run("poor", skill=0.2, strategy="lm_only"), make_run("good", skill=2.0, noise=1)
    found = compare([poor, good], replicates=200)
    assert [row.name for row in found.rows] == ["lm_only", "vem"]
    single = evaluate(good, replicates=200)
    cells = {cell.measure.name: cell for cell in found.rows[1].cells}
    for measure in single.measures:
        assert cells[measure.name].value == pytest.approx(measure.value)
        # The same resamples, so the same interval.
        assert cells[measure.name].interval == measure.interval
    auroc = cells["auroc"].difference
    assert auroc is not None
    assert auroc.interval is not None
    assert auroc.value == pytest.approx((single.measure("auroc").value or 0) - (found.rows[0].cells[1].value or 0))
    assert auroc.interval.low > 0
    assert auroc.p_value == pytest.approx(2 / 201)
    assert all(cell.difference is None for cell in found.rows[0].cells)


def test_runs_of_several_seeds_are_one_row(make_run: MakeRun) -> None:
    runs = [make_run(f"seed{seed}", noise=seed, seed=seed) for seed in range(3)]
    other = make_run("other", noise=7, strategy="lm_only")
    found = compare([other, *runs], replicates=50)
    assert [len(row.folders) for row in found.rows] == [1, 3]
    values = [evaluate(run, replicates=5).measure("auroc").value for run in runs]
    cell = next(cell for cell in found.rows[1].cells if cell.measure.name == "auroc")
    assert cell.value == pytest.approx(np.mean(values))  # type: ignore[arg-type]
    assert cell.spread is not None
    assert cell.spread.deviation == pytest.approx(np.std(values, ddof=1))  # type: ignore[arg-type]
    assert cell.interval is not None
    alone = next(cell for cell in found.rows[0].cells if cell.measure.name == "auroc")
    assert alone.spread is not None
    assert alone.spread.deviation is None


def test_rows_of_one_name_are_told_apart_by_their_folder(make_run: MakeRun) -> None:
    found = compare([make_run("a"), make_run("b", graph={"tau": 3}, noise=1)], replicates=5)
    assert [row.name for row in found.rows] == ["vem (a)", "vem (b)"]


def test_plain_models_are_named_by_themselves(make_run: MakeRun) -> None:
    found = compare([make_run("a"), make_run("b", system="logistic", noise=1)], replicates=5)
    assert [row.name for row in found.rows] == ["vem", "logistic"]


def _other_cohort(folder: Path) -> None:
    about = read_json(folder / "run.json", what="run")
    about["identity"]["cohort"] = "another"
    write_json(folder / "run.json", sealed(about))


def test_what_does_not_belong_together_is_refused(make_run: MakeRun) -> None:
    first = make_run("first")
    with pytest.raises(PlmError, match="one run alone"):
        compare([first])
    other = make_run("task", "length_of_stay")
    with pytest.raises(PlmError, match="different tasks \\('readmission' and 'length_of_stay'\\)"):
        compare([first, other])
    split = make_run("split", task_settings={"split_seed": 1})
    with pytest.raises(PlmError, match=r"different task settings or splits: task_settings.split_seed is 0 there and 1"):
        compare([first, split])
    cohort = make_run("cohort", noise=2)
    _other_cohort(cohort)
    with pytest.raises(PlmError, match="different cohorts"):
        compare([first, cohort])
    with pytest.raises(PlmError, match="are the same, seed included"):
        compare([first, first])
    fewer = make_run("fewer", seed=3, change=lambda frame: frame[:-4])
    with pytest.raises(PlmError, match="different instances"):
        compare([first, fewer])


def test_bad_predictions_are_refused(make_run: MakeRun) -> None:
    first = make_run("first")
    missing = make_run("missing", seed=1)
    (missing / "predictions.parquet").unlink()
    with pytest.raises(PlmError, match="missing' has no predictions"):
        compare([first, missing])
    outside = make_run(
        "outside",
        seed=2,
        change=lambda frame: frame.with_columns(pl.col("probabilities").list.eval(pl.element() * 3)),
    )
    with pytest.raises(PlmError, match="outside 0 to 1"):
        compare([first, outside])
    twice = make_run("twice", seed=3, change=lambda frame: pl.concat([frame, frame]))
    with pytest.raises(PlmError, match="share an instance id"):
        compare([first, twice])
    relabelled = make_run(
        "relabelled",
        seed=4,
        change=lambda frame: frame.with_columns(pl.col("label").list.eval(1 - pl.element())),
    )
    with pytest.raises(PlmError, match="different labels for the same instances"):
        compare([first, relabelled])


def test_a_comparison_is_written_and_never_over_something(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("a", "drug_recommendation"), make_run("b", "drug_recommendation", noise=1, strategy="lm_only")]
    found = compare(runs, replicates=20)
    out = write_comparison(found, tmp_path / "out")
    assert {path.name for path in out.iterdir()} == {
        "comparison.json",
        "comparison.csv",
        "comparison.tex",
        "differences.svg",
        "differences.png",
    }
    table = comparison_table(found)
    assert table.height == 2 * len(found.names)
    assert read_json(out / "comparison.json", what="comparison")["differences"] == "against vem"
    with pytest.raises(PlmError, match="exists already"):
        write_comparison(found, out)


def test_the_command_compares(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    runs = [str(make_run("a")), str(make_run("b", noise=1, strategy="lm_only"))]
    out = tmp_path / "side-by-side"
    result = CliRunner().invoke(app, ["compare", *runs, "--replicates", "20", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "difference from vem" in result.output
    assert " p " in result.output
    assert (out / "comparison.csv").is_file()
    again = CliRunner().invoke(app, ["compare", *runs, "--out", str(out)])
    assert isinstance(again.exception, PlmError)


def _auroc(row: Row) -> Cell:
    return next(cell for cell in row.cells if cell.measure.name == "auroc")


def test_splits_are_averaged_and_a_patient_is_drawn_in_all_of_them_at_once(make_run: MakeRun) -> None:
    plain = [
        make_run(f"plain{k}", strategy="lm_only", skill=0.2, noise=k, task_settings={"split_seed": k}) for k in range(4)
    ]
    good = [make_run(f"good{k}", skill=2.0, noise=10 + k, task_settings={"split_seed": k}) for k in range(4)]
    found = compare([*plain, *good], across_splits=True, replicates=200)
    assert [(row.name, len(row.folders)) for row in found.rows] == [("lm_only", 4), ("vem", 4)]
    single = [read_predictions(run).of_split("test") for run in good]
    assert found.times_split == 4
    assert found.instances == sum(len(each) for each in single)
    tested = [set(each.subject_ids) for each in single]
    assert found.patients == len(set.union(*tested)) < sum(len(each) for each in tested)
    values = [roc_auc_score(each.labels, each.probabilities) for each in single]
    cell = _auroc(found.rows[1])
    assert cell.value == pytest.approx(np.mean(values))
    assert cell.spread is not None
    assert cell.spread.deviation == pytest.approx(np.std(values, ddof=1))
    # By hand: the patients of all splits are drawn together.
    names = np.unique([name for each in single for name in each.subject_ids])
    expected = []
    for weights in resamples(len(names), 200):
        for row in weights:
            drawn = dict(zip(names.tolist(), row, strict=True))
            scores = []
            for each in single:
                weight = np.array([drawn[name] for name in each.subject_ids])
                if len(np.unique(each.labels[weight > 0])) == 2:
                    scores.append(roc_auc_score(each.labels, each.probabilities, sample_weight=weight))
            expected.append(np.mean(scores))
    assert cell.interval is not None
    assert [cell.interval.low, cell.interval.high] == pytest.approx(np.quantile(expected, [0.025, 0.975]))
    assert cell.difference is not None
    assert cell.difference.interval is not None
    assert cell.difference.interval.low > 0


def test_a_split_without_an_outcome_falls_out_of_the_mean(make_run: MakeRun) -> None:
    def nobody(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(label=pl.Series([[0]] * frame.height, dtype=pl.List(pl.Int64)))

    def of(name: str, strategy: str) -> list[Path]:
        return [
            make_run(f"{name}0", strategy=strategy, noise=1, task_settings={"split_seed": 0}),
            make_run(f"{name}1", strategy=strategy, task_settings={"split_seed": 1}, change=nobody),
        ]

    found = compare([*of("a", "lm_only"), *of("b", "vem")], across_splits=True, replicates=50)
    for row in found.rows:
        cell = _auroc(row)
        assert cell.value == pytest.approx(evaluate(row.folders[0], replicates=5).measure("auroc").value)
        assert cell.spread is not None
        assert cell.spread.seeds == 1
    assert _auroc(found.rows[1]).difference is not None


def test_splits_are_averaged_only_where_asked_and_only_the_same_ones(make_run: MakeRun) -> None:
    a0, a1 = (make_run(f"a{k}", strategy="lm_only", task_settings={"split_seed": k}) for k in range(2))
    b0 = make_run("b0", task_settings={"split_seed": 0}, noise=1)
    with pytest.raises(PlmError, match="split_seed") as caught:
        compare([a0, a1])
    assert "--across-splits" in str(caught.value)
    with pytest.raises(PlmError, match=r"different splits \(split seeds 0, 1; 0\)"):
        compare([a0, a1, b0], across_splits=True)
    other_clock = make_run("clock", task_settings={"split_seed": 1, "clock": "discharge"})
    with pytest.raises(PlmError, match="clock") as caught:
        compare([b0, other_clock])
    assert "--across-splits" not in str(caught.value)
    shown = CliRunner().invoke(app, ["compare", str(a0), str(a1), "--across-splits", "--replicates", "20"])
    assert shown.exit_code == 0, shown.output
    assert "in 2 splits of the cohort" in " ".join(shown.output.split())
