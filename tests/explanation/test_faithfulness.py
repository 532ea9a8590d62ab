"""The masking experiment and the command on trained tiny runs, three tasks, both modes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from explanation.small_graphs import embeddings_for, small_graph, small_network
from typer.testing import CliRunner

from patients_like_me.cli.faithfulness import faithfulness, numbers_of_references
from patients_like_me.errors import PlmError
from patients_like_me.explanation.faithfulness import assess_faithfulness, question_of
from patients_like_me.explanation.masking_experiment import (
    LOGIT,
    PROBABILITY,
    Masking,
    masking_experiment,
    metrics_to_mask,
)
from patients_like_me.explanation.methods import Method, Question, all_methods, registry
from patients_like_me.runs.run import load_run

FinishedRun = Callable[..., Path]


def masked(ks: list[int], **settings: object) -> tuple[Question, dict[str, np.ndarray], object]:
    graph = small_graph(nodes=80)
    question = Question.ask(small_network(width=24), graph, embeddings_for(graph), "binary", np.arange(len(graph)))
    names = ("gradient", "leave_one_out", "leave_one_out_magnitude", "edge_weight")
    scores = {name: all_methods()[name].score(question) for name in names}
    # The labels are what the model says, so that a change of the prediction is a loss.
    labels = (question.logits[:, 0] > np.median(question.logits[:, 0])).astype(np.int64)
    subjects = np.arange(len(graph)) // 2
    masking = Masking(ks, **{"replicates": 60, **settings})  # type: ignore[arg-type]
    return question, scores, masking_experiment(question, scores, labels, subjects, ["auprc", "auroc"], masking)


def test_removing_what_was_measured_to_matter_beats_random() -> None:
    question, _, result = masked([1, 3])
    assert result.before["auprc"] == pytest.approx(1)  # type: ignore[attr-defined]
    for k in (1, 3):
        change = result.change("leave_one_out", k, LOGIT)  # type: ignore[attr-defined]
        assert change.value > 0
        assert change.interval.low <= change.value <= change.interval.high
        assert change.against_random.interval.low > 0
        assert change.against_random.p_value < 0.05
        far = result.change("leave_one_out_magnitude", k, PROBABILITY)  # type: ignore[attr-defined]
        assert far.against_random.interval.low > 0
        assert result.change("random", k, LOGIT).against_random is None  # type: ignore[attr-defined]
    assert result.change("leave_one_out_magnitude", 3, "auprc").value <= 0  # type: ignore[attr-defined]
    assert result.patients == 40  # type: ignore[attr-defined]
    counts = np.diff(question.edges.indptr)
    assert result.with_references == (counts > 0).sum()  # type: ignore[attr-defined]
    assert result.fewer[3] == ((counts > 0) & (counts < 3)).sum()  # type: ignore[attr-defined]


def test_the_change_at_one_is_the_mean_of_the_measured_effects() -> None:
    question, scores, result = masked([1], references="all")
    rows = [scores["leave_one_out"][question.edges.row(number)] for number in range(len(question.edges))]
    first = [row.max() if len(row) else 0.0 for row in rows]
    assert result.change("leave_one_out", 1, LOGIT).value == pytest.approx(np.mean(first))  # type: ignore[attr-defined]


def test_the_same_seed_gives_the_same_result() -> None:
    assert masked([2])[2].as_json() == masked([2])[2].as_json()  # type: ignore[attr-defined]


def test_one_class_only_is_not_available_and_not_a_crash() -> None:
    graph = small_graph(nodes=40)
    question = Question.ask(small_network(), graph, embeddings_for(graph), "binary", np.arange(len(graph)))
    scores = {"edge_weight": all_methods()["edge_weight"].score(question)}
    labels = np.zeros(len(graph), dtype=np.int64)
    result = masking_experiment(question, scores, labels, np.arange(len(graph)), ["auprc"], Masking([1], replicates=20))
    assert result.change("edge_weight", 1, "auprc").value is None
    assert result.change("edge_weight", 1, PROBABILITY).value is not None


@pytest.mark.parametrize("references", ["cohort", "bank"])
@pytest.mark.parametrize("task", ["readmission", "length_of_stay", "drug_recommendation"])
def test_a_run_is_assessed(task: str, references: str, finished_run: FinishedRun, tmp_path: Path) -> None:
    opened = load_run(finished_run(task, references=references))
    found = assess_faithfulness([opened], Masking([1, 3], replicates=30))
    folder = found.write(tmp_path / "out")
    content = json.loads((folder / "faithfulness.json").read_text())
    assert content["task"] == task
    assert content["references"] == references
    (group,) = content["masking"]
    assert group["instances"] == len(opened.rows_of("test"))
    metrics = metrics_to_mask(opened.task.kind, opened.task.metrics)
    assert {change["measure"] for change in group["changes"]} == {*metrics, LOGIT, PROBABILITY}
    table = pl.read_csv(folder / "masking.csv")
    assert set(table["method"]) == {name for name, method in all_methods().items() if not method.slow}
    attributions = pl.read_parquet(folder / "attributions.parquet")
    graph = opened.graph_of("test")
    evaluated = opened.evaluated("test")
    assert attributions.height == int(graph.degrees[-evaluated:].sum())
    wanted = set(opened.instances.frame.filter(pl.col("split") == "test")["instance_id"])
    assert set(attributions["instance_id"]) <= wanted
    referenced = set(attributions["reference_id"])
    assert referenced <= wanted if references == "cohort" else referenced.isdisjoint(wanted)
    before = group["before"][metrics[0]]
    scores = opened.results.scores["test"]
    if metrics[0] in scores and scores[metrics[0]] is not None:
        # Two instances with the same text have the same probabilities up to rounding, which decides their order.
        assert before == pytest.approx(scores[metrics[0]], abs=5e-3)
    for name in ("masking.svg", "masking.png"):
        assert (folder / name).stat().st_size > 5000
    assert all("random ones" in sentence for sentence in found.verdict())
    # A score that rises without references is not said to be changed less or more than at random.
    assert not any("more than random:" in sentence for sentence in found.verdict())


def test_slow_methods_are_compared_on_a_sample(finished_run: FinishedRun) -> None:
    opened = load_run(finished_run("readmission"))
    found = assess_faithfulness([opened], Masking([1], replicates=10), methods=["gradient", "subgraphx"], sample=4)
    everyone, sample = found.masking
    assert everyone.methods == ["gradient", "random"]
    assert sample.methods == ["gradient", "subgraphx", "random"]
    assert (sample.instances, sample.with_references) == (4, 4)
    assert "subgraphx" not in found.attributions.columns
    (pair,) = found.agreement
    assert {pair.first, pair.second} == {"gradient", "subgraphx"}


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (lambda question: {}["x"], "KeyError: 'x'"),
        (lambda question: np.ones(1), "the method 'odd' gave 1 scores for"),
        (
            lambda question: np.full(question.edges.edges, np.nan),
            "the method 'odd' gave some scores that are not numbers",
        ),
    ],
)
def test_a_method_of_another_package_that_fails_is_left_out_and_named(
    score: Callable[[Question], np.ndarray], words: str, finished_run: FinishedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, known = load_run(finished_run("readmission")), {**all_methods(), "odd": Method("odd", "odd", score)}
    monkeypatch.setattr(registry, "all_methods", lambda: known)
    found = assess_faithfulness([opened], Masking([1], replicates=5), methods=["gradient", "odd"])
    assert found.masking[0].methods == ["gradient", "random"]
    assert words in found.left_out[0]
    assert found.verdict()[0] == found.left_out[0] == found.as_json()["left_out"][0]
    with pytest.raises(PlmError, match="the method 'odd' of another package is left out"):
        assess_faithfulness([opened], Masking([1], replicates=5), methods=["odd"])


def test_a_method_needs_a_function_and_a_name_of_its_own() -> None:
    with pytest.raises(PlmError, match="cannot be called 'all'"):
        Method("all", "everything", lambda question: question.weights)
    with pytest.raises(PlmError, match="'odd' has no function 'score'"):
        Method("odd", "nothing", None)  # type: ignore[arg-type]


def test_other_seeds_tell_how_stable_the_references_are(finished_run: FinishedRun) -> None:
    runs = [load_run(finished_run("readmission", seed=seed)) for seed in (0, 1)]
    found = assess_faithfulness(runs, Masking([1], replicates=5), methods=["gradient"])
    (pair,) = found.stability
    assert (pair.first, pair.second) == ("run 1", "run 2")
    assert 0 <= pair.top_overlap <= 1  # type: ignore[operator]


def test_a_run_without_a_graph_is_refused(finished_run: FinishedRun) -> None:
    with pytest.raises(PlmError, match="without a graph"):
        question_of(load_run(finished_run("readmission", strategy="lm_only")), "test")


def test_the_command(finished_run: FinishedRun, tmp_path: Path) -> None:
    import typer

    app = typer.Typer()
    app.command()(faithfulness)
    run, out = finished_run("drug_recommendation"), tmp_path / "found"
    label = load_run(run).label_vocabulary[0]
    words = [str(run), "--methods", "gradient,leave_one_out_magnitude", "--k", "1,3", "--replicates", "20"]
    result = CliRunner().invoke(
        app, [*words, "--label", label, "--out", str(out)], catch_exceptions=False, env={"COLUMNS": "80"}
    )
    assert result.exit_code == 0
    assert "first 3 shown references removed" in result.output
    # Nothing is cut in a narrow terminal, and what is printed is what is meant.
    assert "…" not in result.output
    assert "\\[" not in result.output
    for name in ("leave_one_out_magnitude", "auprc per instance", "95 % interval", "Spearman", "targets"):
        assert name in result.output
    assert json.loads((out / "faithfulness.json").read_text())["target"] == f"the logit of {label}"
    with pytest.raises(PlmError, match="does not predict"):
        CliRunner().invoke(app, [*words, "--label", "no such code"], catch_exceptions=False)


@pytest.mark.parametrize("words", ["", "0..3", "a,b", "5..2", "1,,3"])
def test_strange_numbers_are_refused(words: str) -> None:
    with pytest.raises(PlmError, match="does not list numbers"):
        numbers_of_references(words)
