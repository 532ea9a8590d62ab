"""Explanations of runs whose references bring their outcomes: exact shares, exact removals, honest roles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_array
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.errors import PlmError
from patients_like_me.explanation import reference_scene
from patients_like_me.explanation.decision import decision_of_run
from patients_like_me.explanation.explain import explain, explainer_of
from patients_like_me.explanation.opened_references import OpenedReferences, explain_compared
from patients_like_me.explanation.reference_scene import (
    ReferenceScene,
    audit_of_references,
    shown_lists,
    shows_shares,
    with_codes_in_common,
)
from patients_like_me.explanation.references import references_of
from patients_like_me.explanation.scene import set_scene
from patients_like_me.explanation.share_explainer import ShareExplainer
from patients_like_me.explanation.target_edges import TargetEdges
from patients_like_me.explanation.what_if import Change
from patients_like_me.records.cohort import Cohort
from patients_like_me.report.patient_page import patient_markdown, patient_page
from patients_like_me.runs.run import Run, load_run
from patients_like_me.systems.additive_references import AdditiveReferences
from patients_like_me.systems.growing import grow_bank
from patients_like_me.systems.joining_checks import new_references
from patients_like_me.systems.problem import only
from patients_like_me.systems.reference_path.relations import Neighbours
from patients_like_me.systems.references import _model_of
from patients_like_me.systems.registry import find_system
from patients_like_me.systems.train import train
from patients_like_me.tasks.instances import build_instances

SMALL: dict[str, Any] = {
    "own_path": ["linear"],
    "part_settings": {"linear": {"penalties": [30.0], "block_factors": []}},
    "folds": 2,
    "k": [10, 30],
    "powers": [1.0],
    "gate_penalties": [0.03],
    "output_penalties": [None],
    "may_stay_out": False,
}


@pytest.fixture(scope="module", params=["readmission", "drug_recommendation", "length_of_stay"])
def run(request: pytest.FixtureRequest, cohort_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("references") / request.param
    return train(cohort_folder, request.param, out, system="references", settings=SMALL)


@pytest.fixture(scope="module")
def scene(run: Run) -> ReferenceScene:
    found = set_scene(load_run(run.folder))
    assert isinstance(found, ReferenceScene)
    return found


def explainers(scene: ReferenceScene) -> list[ShareExplainer]:
    decision = decision_of_run(scene.run)
    found = [explainer_of(scene, int(row), decision) for row in scene.own_rows[:6]]
    assert all(isinstance(each, ShareExplainer) for each in found)
    return found  # type: ignore[return-value]


def test_the_scene_predicts_what_the_run_wrote(run: Run, scene: ReferenceScene) -> None:
    assert scene.uses_graph
    test = run.predictions().filter(split="test")
    written = np.array(test["probabilities"].to_list())
    found = np.array([scene.probabilities(scene.node_of_row(int(row))) for row in scene.own_rows])
    np.testing.assert_allclose(found, written, atol=1e-6)


class Foreign:
    """The model of another package: it has what the contract asks for, and nothing else."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        assert name in dir(AdditiveReferences), name
        found = getattr(self._model, name)
        if name in ("with_residuals", "sending_from"):
            return lambda given: Foreign(found(given))
        return found


def test_a_foreign_system_with_shares_is_explained_the_same_way(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(run: Run) -> tuple[str, Any, Any]:
        scene = set_scene(run)
        row = max(scene.own_rows.tolist(), key=lambda row: scene.graph.degrees[scene.node_of_row(row)])
        newcomer = OpenedReferences(run).compared(only(run.instances, np.array([row])))
        page = explain_compared(newcomer, decision_of_run(run))
        return patient_page(explain(scene, row)), page.references, audit_of_references(run.folder)

    ours = find_system("references")
    expected = found(load_run(run.folder))
    for declared in (lambda fitted: Foreign(_model_of(fitted)), None):
        other = replace(ours, additive_references=declared)  # type: ignore[arg-type]
        monkeypatch.setattr(reference_scene, "find_system", lambda _, other=other: other)
        assert shows_shares(run) is (declared is not None)
        if declared is None:
            with pytest.raises(PlmError, match="have no shares in its predictions"):
                set_scene(load_run(run.folder))
        else:
            assert found(load_run(run.folder)) == expected


def test_a_scene_of_few_nodes_has_what_these_send(scene: ReferenceScene) -> None:
    """What a network makes of embeddings was read from the first places of the whole bank."""
    model, places = scene.fitted, np.array([3, 7])
    network = np.random.default_rng(0).normal(size=model.bank.residuals.shape).astype(np.float32)
    model = replace(model, bank=replace(model.bank, network=network))
    few, whole = model.sending_from(places).bank.sent(), model.bank.sent(places)
    assert few.keys() == whole.keys()
    assert all((few[name] == whole[name]).all() for name in whole)


def test_shares_add_up_to_the_correction(scene: ReferenceScene) -> None:
    for explainer in explainers(scene):
        own = float(explainer.own_logits @ explainer.choice.double().numpy())
        assert abs(sum(explainer.shares.values()) - (explainer.target_logit() - own)) < 1e-9
        shown = [explainer.explained(name, each) for name, each in explainer.named.items()]
        assert shown
        # The visits of one person follow the first of them.
        sizes = [abs(each.influence or 0.0) for each in shown if each.same_patient_as is None]
        assert sizes == sorted(sizes, reverse=True)
        if explainer.own_probability is not None:
            column = explainer.decision.column(explainer.probabilities)
            change = 100 * (explainer.probabilities[column] - explainer.own_probability)
            assert abs(sum(explainer.points.values()) - change) < 1e-6


def test_points_of_a_class_know_what_a_reference_says_about_the_others(scene: ReferenceScene) -> None:
    """By hand, in small steps from the own answer: the slopes of the softmax times the shares in all classes."""
    if not scene.task.kind.adds_up:
        return
    for explainer in explainers(scene):
        column, found = explainer.decision.column(explainer.probabilities), scene.known.shares_of(explainer.node)
        whole, slopes = found.shares.sum(axis=0), np.zeros(found.shares.shape[1])
        for place in (np.arange(400) + 0.5) / 400:
            now = scene.task.kind.probabilities((explainer.own_logits + place * whole)[None])[0]
            slopes += now[column] * ((np.arange(len(now)) == column) - now) / 400
        expected = dict(zip(found.references.tolist(), 100 * found.shares @ slopes, strict=True))
        assert explainer.points == pytest.approx(expected, abs=1e-3)
        for name, reference in explainer.named.items():
            shown = explainer.explained(name, reference)
            assert shown.direction == ("raises" if expected[reference.node] > 0 else "lowers")
            # Its logit rises, but its probability falls: the probability is what is shown.
            assert replace(shown, share=0.2, points=-1.0).direction == "lowers"


def test_outcomes_are_counted_among_patients_who_were_not_chosen_by_their_outcome(scene: ReferenceScene) -> None:
    others = 0
    for explainer in explainers(scene):
        similar = references_of(scene, explainer.node)
        assert explainer.support.references == len(similar)
        others += {each.node for each in similar} != {each.node for each in explainer.named.values()}
        labels = np.array([scene.instances.labels[each.row] for each in similar])
        happened = explainer.decision.happened(labels, explainer.decided)
        assert explainer.support.had == (None if happened is None else happened.sum())
        if len(explainer.shares) > len(explainer.named):
            assert f"among the {len(similar)} most similar" in explainer.sentences()[-1]
    assert others


def test_steps_of_a_recalibration_are_told_where_one_reference_may_cross_one() -> None:
    calibration = SimpleNamespace(method="isotonic")
    told: Any = SimpleNamespace(
        shares={1: 0.1},
        named={"R1": None},
        own_probability=0.27,
        probabilities=[0.25],
        _column=0,
        scene=SimpleNamespace(run=SimpleNamespace(record=SimpleNamespace(calibration=calibration))),
    )
    assert "recalibrated in steps" in ShareExplainer.sentences(told)[-1]
    calibration.method = "logistic"
    assert len(ShareExplainer.sentences(told)) == 1


def test_closed_gates_leave_similar_patients_whom_no_prediction_uses(scene: ReferenceScene) -> None:
    model, row = scene.fitted, int(scene.own_rows[0])
    gates = replace(model.path.gates, values=np.zeros_like(model.path.gates.values))
    model = replace(model, path=replace(model.path, gates=gates))
    described = model.described(only(scene.instances, scene.own_rows))
    lists = shown_lists(model, described, [scene.instances.instance_ids[place] for place in scene.own_rows])
    assert all((each.similarities > 0).any() for each in lists.values())
    found = explain(replace(scene, fitted=model, lists=lists), row)
    assert found.references
    assert {each.direction for each in found.references} == {"not used"}
    assert not found.support.is_missing
    assert "none is used" in found.notes[-1]
    page = patient_page(found)
    assert "Similar patients, the most similar first" in page
    assert "The prediction uses none of them" in page
    assert "those whom the prediction uses" not in page
    assert "what they do to the prediction" not in page
    assert "shares at least" not in patient_markdown(found)


def test_only_codes_make_patients_alike(scene: ReferenceScene) -> None:
    """Age, sex and place are in the bag, and relations may read them; a similar patient shares a code."""
    bank = replace(
        scene.fitted.bank,
        features=("current diagnosis 49", "sex = f", "site = north"),
        weights=np.array([1.0, 1.0, 1.0]),
    )
    rows = bank.compared_codes(csr_array(np.array([[1, 1, 1], [0, 1, 1], [1, 0, 0]])))
    np.testing.assert_array_equal((rows @ rows.T).toarray(), [[1, 0, 1], [0, 0, 0], [1, 0, 1]])
    lists = Neighbours(np.array([[0, 1]], np.int32), np.array([[0.9, 0.8]], np.float32))
    kept = with_codes_in_common(lists, rows[[2]], rows[:2])
    assert kept.similarities.tolist() == [[pytest.approx(0.9), 0.0]]


def test_nobody_appears_under_two_names(scene: ReferenceScene) -> None:
    for row in scene.own_rows[:6]:
        found = explain(scene, int(row), show_ids=True)
        people = [{each.person.subject_id for each in some} for some in (found.references, found.counter_references)]
        assert not people[0] & people[1]
        named = [each.name for each in found.references if each.agrees is False]
        assert list(found.references_against) == named
        assert not named or f"Patients above {found.disagreed}: {', '.join(named)}." in patient_page(found)


def test_outcome_and_influence_are_two_statements(scene: ReferenceScene) -> None:
    labels, seen = scene.instances.labels, 0
    for explainer in explainers(scene):
        if scene.task.name != "readmission":
            continue
        for name, reference in explainer.named.items():
            shown = explainer.explained(name, reference)
            assert shown.had == bool(labels[reference.row] == 1)
            assert shown.direction == ("raises" if (shown.share or 0) > 0 else "lowers")
            seen += shown.had
            # The reason is what became of the reference, set against what its record suggested.
            assert f"{name} {'had' if shown.had else 'did not have'} the outcome, which its own record" in shown.because
            if shown.had != (shown.direction == "raises"):
                assert "contrast" in shown.because
    assert seen or scene.task.name != "readmission"


def test_importance_is_the_derivative_and_removal_is_exact(scene: ReferenceScene) -> None:
    known, node = scene.known, scene.node_of_row(int(scene.own_rows[0]))
    edges = TargetEdges.of(scene.graph.indptr, scene.graph.neighbors, np.array([node]))
    outputs = known.logits.shape[1]
    choice = np.eye(outputs)[:1]
    importances = known.importances(edges, choice)
    starts = np.arange(len(edges.entries) + 1)
    alone = known.logits_without(np.full(len(edges.entries), node), starts, edges.entries)
    nobody = known.logits_without(np.array([node]), np.array([0, len(edges.entries)]), edges.entries)
    np.testing.assert_allclose(nobody[0], known.own[node - known.first], atol=1e-12)
    # By hand: every relation without the first reference.
    gone, model = int(edges.neighbors[0]), known.model
    expected = known.own[node - known.first].copy()
    for number, relation in enumerate(model.path.relations):
        each = known.lists[relation.similarity].rows(np.array([node - known.first]))
        columns, weights = each.columns[0, : relation.k], relation.weights(each)[0]
        weights = np.where(columns == gone, 0.0, weights)
        sent = model.bank.residuals[columns].astype(np.float64)
        message = (weights[:, None] * sent).sum(axis=0) / (weights.sum() + model.path.lambdas[number])
        expected += model.path.gates.values[number] * message
    np.testing.assert_allclose(alone[0], expected, atol=1e-9)
    assert np.isfinite(importances).all()
    assert np.abs(importances).max() > 0


def test_pages_show_shares_and_what_if_drops_exactly(scene: ReferenceScene) -> None:
    row = int(scene.own_rows[0])
    found = explain(scene, row, change=Change(drop=("R1",)))
    page, text = patient_page(found), patient_markdown(found)
    for shown in (page, text):
        assert "The references with the most influence" in shown
        assert "share" in shown
        assert found.references[0].because.startswith("R1 ")
        assert found.references[0].because in shown
        assert "own record" in found.references[0].because
    assert "together change the target logit" in dict(found.rules)["correction"]
    assert found.what_if is not None
    assert "R1" in found.what_if.left
    explainer = explainers(scene)[0]
    node = explainer.named["R1"].node
    change = found.what_if.before.target_logit - found.what_if.after.target_logit
    assert abs(change - explainer.effects[node]) < 1e-9
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    headers = [line.count("|") for line in lines if line.startswith("| reference |")]
    assert {line.count("|") for line in lines if line.startswith("| R")} == set(headers[:2])


def test_the_command_explains_evaluated_and_new_patients(
    run: Run, make_cohort: Callable[..., Path], tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, ["explain", str(run.folder), "--example", "1", "--out", str(tmp_path / "p.html")])
    assert result.exit_code == 0, result.output
    assert "raises the" in result.output or "lowers the" in result.output
    others = make_cohort(patients=5, seed=8, prefix="n")
    page = tmp_path / "new.md"
    result = CliRunner().invoke(
        app, ["explain", str(run.folder), "--cohort", str(others), "--example", "1", "--out", str(page)]
    )
    assert result.exit_code == 0, result.output
    assert "share" in page.read_text()


def test_a_bank_grows_by_a_command(run: Run, make_cohort: Callable[..., Path], tmp_path: Path) -> None:
    others = make_cohort(patients=40, seed=9, prefix="later")
    out = tmp_path / "grown"
    result = CliRunner().invoke(app, ["bank", "add", str(run.folder), str(others), "--out", str(out)])
    assert result.exit_code == 0, result.output
    grown = load_run(out)
    assert "without training" in grown.results.notes[-1]
    assert "bank +" in grown.name
    before, after = (np.array(each.predictions()["probabilities"].to_list()) for each in (run, grown))
    assert np.abs(before - after).max() > 1e-5
    again = grow_bank(run, others, tmp_path / "again")
    np.testing.assert_array_equal(np.array(again.predictions()["probabilities"].to_list()), after)
    shown = CliRunner().invoke(app, ["explain", str(out), "--example", "1"])
    assert shown.exit_code == 0, shown.output
    scene = set_scene(grown)
    found = np.array([scene.probabilities(scene.node_of_row(int(row))) for row in scene.own_rows])
    written = np.array(grown.predictions().filter(split="test")["probabilities"].to_list())
    np.testing.assert_allclose(found, written, atol=1e-6)


def test_a_bank_takes_nobody_on_whom_the_run_is_scored(
    run: Run, make_cohort: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(PlmError, match="the run knows all its instances"):
        grow_bank(run, Path(run.record.cohort_folder), tmp_path / "same")
    others = build_instances(Cohort.load(make_cohort(patients=30, seed=9, prefix="later")), run.task, run.task_settings)
    evaluated = run.instances.cohort.patients["subject_id"][int(run.instances.frame.filter(split="test")["subject"][0])]
    first = others.cohort.patients["subject_id"][0]
    renamed = others.cohort.patients.with_columns(pl.col("subject_id").replace(first, evaluated))
    rows, words = new_references(replace(others, cohort=replace(others.cohort, patients=renamed)), run.instances)
    of_first = others.frame["subject"].to_numpy() == 0
    np.testing.assert_array_equal(rows, np.flatnonzero(~of_first))
    assert words == [f"{of_first.sum()} are left out because they are of validation or test patients"]
    grown = grow_bank(run, make_cohort(patients=30, seed=9, prefix="later"), tmp_path / "grown")
    with pytest.raises(PlmError, match="added to the bank of the run before"):
        grow_bank(grown, make_cohort(patients=30, seed=9, prefix="later"), tmp_path / "again")
