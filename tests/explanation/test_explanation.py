"""The whole explanation: three tasks, both modes, and a run without a graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patients_like_me.codes.interactions import Interactions
from patients_like_me.explanation.counter_references import TurningSet
from patients_like_me.explanation.decision import decision_for
from patients_like_me.explanation.drug_matrix import with_interactions
from patients_like_me.explanation.evidence import Code
from patients_like_me.explanation.explain import explain
from patients_like_me.explanation.explanation import ExplainedReference, Explanation
from patients_like_me.explanation.network_pass import GeneralPass
from patients_like_me.explanation.references import references_of
from patients_like_me.explanation.scene import Scene, chosen_row, set_scene
from patients_like_me.explanation.target_edges import TargetEdges
from patients_like_me.explanation.targets import chosen_outputs
from patients_like_me.explanation.what_if import Change, without_edges
from patients_like_me.explanation.wording import NOT_ADJUSTED, notes_on, turning_in_words
from patients_like_me.plain_text import counted_of, percent_of
from patients_like_me.report.patient_page import (
    TrendColumns,
    VisitsAsOne,
    as_one,
    patient_markdown,
    patient_page,
    trend_columns,
    visits_of_one_patient,
)
from patients_like_me.runs.calibration import Calibration
from patients_like_me.runs.run import load_run

FinishedRun = Callable[..., Path]
#: Words of those who make models: beside the answer they would only be noise.
SETTINGS = ("F1", "validation", "inputs:", "training instances", "training patients")
TASKS = ("readmission", "length_of_stay", "drug_recommendation")


def busiest(scene: Scene) -> int:
    return max(scene.own_rows.tolist(), key=lambda row: scene.graph.degrees[scene.node_of_row(row)])


@pytest.mark.parametrize("references", ["cohort", "bank"])
@pytest.mark.parametrize("task", TASKS)
def test_importance_and_effect_are_measured_on_the_target_logit(
    task: str, references: str, finished_run: FinishedRun
) -> None:
    scene = set_scene(load_run(finished_run(task, references=references)))
    row = busiest(scene)
    node = scene.node_of_row(row)
    found = explain(scene, row)
    threshold = found.prediction.threshold or 0.5
    choice = chosen_outputs(scene.task.kind, scene.logits[node : node + 1], threshold=threshold)[0]
    assert found.prediction.target_logit == pytest.approx(float((scene.logits[node] * choice).sum()), abs=1e-4)
    edges = TargetEdges.of(scene.graph.indptr, scene.graph.neighbors, np.array([node]))
    general = GeneralPass.of(scene.model.graph_network, scene.graph, scene.embeddings)
    expected = general.importances(edges, choice.double().numpy()[None])
    importance_of = dict(zip(scene.graph.neighbors_of(node)[0].tolist(), expected.tolist(), strict=True))

    def node_of(reference: ExplainedReference) -> int:
        # Two references with the same text have the same cosine.
        alike = [each.node for each in references_of(scene, node) if each.cosine == reference.cosine]
        return min(alike, key=lambda other: abs(importance_of[other] - (reference.importance or 0.0)))

    assert found.references
    for reference in found.references:
        assert reference.importance == pytest.approx(importance_of[node_of(reference)], rel=1e-6, abs=1e-12)
    # The visits of one person follow the first of them; the persons come by the largest importance of their visits.
    people = [group[0] for group in visits_of_one_patient(found.references)]
    shown = [abs(reference.importance or 0.0) for reference in people]
    assert shown == sorted(shown, reverse=True)
    grouped = [reference for group in visits_of_one_patient(found.references) for reference in group]
    assert [reference.name for reference in grouped] == [f"R{number}" for number in range(1, len(grouped) + 1)]
    first = found.references[0]
    cut = scene.with_graph(without_edges(scene.graph, node, [node_of(first)]))
    change = float(((scene.logits[node] - cut.logits[node]) * choice).sum())
    assert first.effect == pytest.approx(change, abs=1e-9)
    for reference in found.references:
        # The logit of a class can rise while its probability falls: the probability decides what is said.
        moved = reference.effect if reference.points is None else reference.points
        assert reference.direction == ("raises" if (moved or 0) > 0 else "lowers")
    if task != "drug_recommendation":
        column = int(np.argmax(scene.probabilities(node))) if task == "length_of_stay" else 0
        moved = 100 * (scene.probabilities(node)[column] - cut.probabilities(node)[column])
        assert first.points == pytest.approx(moved, abs=1e-6)


@pytest.mark.parametrize("references", ["cohort", "bank"])
def test_outcomes_are_shown_only_where_the_model_may_know_them(references: str, finished_run: FinishedRun) -> None:
    scene = set_scene(load_run(finished_run(references=references)))
    found = explain(scene, busiest(scene))
    if references == "bank":
        yes = sum(reference.outcome == "readmitted within 15 days" for reference in found.references)
        assert found.support.outcomes == counted_of(yes, len(found.references), "were readmitted")
        assert found.support.had == yes == sum(reference.had is True for reference in found.references)
        page = patient_page(found)
        assert page.count('class="person had"') == yes
        assert page.count('class="person') == len(found.references)
        assert any("outcomes are known" in note for note in found.notes)
    else:
        assert all(reference.outcome is None and reference.agrees is None for reference in found.references)
        assert any("not known to the model" in note for note in found.notes)


def test_a_run_without_a_graph_says_that_it_does_not_use_references(finished_run: FinishedRun) -> None:
    scene = set_scene(load_run(finished_run(strategy="lm_only")))
    found = explain(scene, busiest(scene))
    assert found.references
    assert all(reference.importance is None and reference.direction == "not used" for reference in found.references)
    assert "does not use them" in found.notes[0]
    assert found.turning is None
    for text in (patient_page(found), patient_markdown(found)):
        assert "does not use them" in text


def test_what_if_names_newcomers_and_keeps_known_names(finished_run: FinishedRun) -> None:
    scene = set_scene(load_run(finished_run("drug_recommendation", references="bank")))
    row = busiest(scene)
    found = explain(
        scene,
        row,
        drug="heparin",
        change=Change(drop=("R1",), remove=("sepsis",)) if _has_sepsis(scene, row) else Change(drop=("R1",)),
    )
    what_if = found.what_if
    assert what_if is not None
    assert what_if.before.references == tuple(reference.name for reference in found.references)
    assert "R1" in what_if.left
    assert "R1" not in what_if.after.references
    assert set(what_if.joined) == {name for name in what_if.after.references if name.startswith("J")}
    assert what_if.before.target_logit == pytest.approx(found.prediction.target_logit)
    assert what_if.after.target_logit != pytest.approx(what_if.before.target_logit, abs=1e-9)


def _has_sepsis(scene: Scene, row: int) -> bool:
    return "sepsis" in scene.graph.sets.of(scene.node_of_row(row))


def test_the_number_is_shown_also_where_nobody_is_comparable(finished_run: FinishedRun) -> None:
    scene = set_scene(load_run(finished_run(references="bank")))
    row = busiest(scene)
    node = scene.node_of_row(row)
    lonely = scene.with_graph(without_edges(scene.graph, node, scene.graph.neighbors_of(node)[0].tolist()))
    found = explain(lonely, row)
    assert found.support.is_missing
    assert found.references == ()
    page = patient_page(found)
    assert "no comparable patients" in page
    assert 'class="number"' in page
    for text in (page, patient_markdown(found)):
        assert "redicted from the patient's own record alone" in text
        assert percent_of(found.prediction.probability) in text


@pytest.mark.parametrize("task", TASKS)
def test_json_is_plain_and_the_same_every_time(task: str, finished_run: FinishedRun) -> None:
    scene = set_scene(load_run(finished_run(task, references="bank")))
    row = chosen_row(scene, example=1)
    first = explain(scene, row)
    assert isinstance(first, Explanation)
    content = json.loads(first.json())
    assert content["task"] == task
    assert len(content["references"]) == len(first.references)
    again = explain(set_scene(load_run(finished_run(task, references="bank"))), row)
    assert first.json() == again.json()
    assert patient_page(first) == patient_page(again)


def test_several_visits_of_one_person_are_named_as_such(finished_run: FinishedRun) -> None:
    scene = set_scene(load_run(finished_run(references="bank")))
    named = 0
    for row in scene.own_rows[:10].tolist():
        found = explain(scene, row, show_ids=True)
        first: dict[str | None, str] = {}
        for reference in found.references:
            subject = reference.person.subject_id
            assert reference.same_patient_as == first.get(subject)
            named += reference.same_patient_as is not None
            first.setdefault(subject, reference.name)
        assert found.support.patients == len(first)
        for group in visits_of_one_patient(found.references):
            if len(group) > 1:
                page = patient_page(found)
                assert f"({len(found.references)} visits of {len(first)} patient" in page
                outcomes = {each.outcome for each in group}
                said = f"each time {group[0].outcome}"
                if len(outcomes) > 1:
                    said = "; ".join(f"{each.name}: {each.outcome}" for each in group)
                assert f"{said}</summary>" in page
                assert f"</strong> · {len(group)} visits of one patient, {group[0].person.sex}, " in page
    assert named


@pytest.mark.parametrize("where", ["record", "picture", "side by side"])
def test_the_mark_of_a_diagnosis_is_explained_where_it_appears(where: str, finished_run: FinishedRun) -> None:
    scene = set_scene(load_run(finished_run(references="bank")))
    found = explain(scene, busiest(scene))

    def marked(codes: Sequence[Code], tied: bool) -> tuple[Code, ...]:
        return tuple(replace(code, tied=tied) for code in codes)

    kinds = found.record.codes
    record = replace(found.record, codes={kind: marked(codes, where == "record") for kind, codes in kinds.items()})
    references = tuple(replace(each, evidence=marked(each.evidence, where == "picture")) for each in found.references)
    tied: dict[str, Any] = {"event": "readmission", "diagnoses": [], "rate_in_training": 0.1}
    if where == "side by side":
        tied["diagnoses"] = [{"code": "1", "name": "x", "lift": 2.0, "rate": 0.2, "instances": 50}]
    page = patient_page(replace(found, record=record, references=references, tied=tied))
    assert page.count("◆ marks diagnoses") == 1
    heading = {"record": "<h2>Similar patients", "picture": "Side by side</h2>", "side by side": "What speaks"}[where]
    assert page.index("◆ marks diagnoses") < page.index(heading)


def test_risk_comes_first_and_the_threshold_is_tuned_on_validation(finished_run: FinishedRun) -> None:
    scene = set_scene(load_run(finished_run(references="bank")))
    row = busiest(scene)
    found = explain(scene, row)
    prediction = found.prediction
    assert prediction.risk is not None
    labels = scene.instances.labels
    assert prediction.risk.average == pytest.approx(labels[scene.run.rows_of("train")].mean())
    assert prediction.threshold_origin == "tuned on validation: highest F1"
    others = scene.other_probabilities[:, 0]
    assert len(others) == len(scene.run.rows_of("validation"))
    assert prediction.risk.lower_share == pytest.approx(np.mean(others < (prediction.probability or 0)), abs=0.05)
    given = explain(scene, row, threshold=0.9999).prediction
    assert given.threshold == 0.9999
    assert given.threshold_origin == "given"
    assert given.answer == "no readmission"
    for text in (patient_page(found), patient_markdown(found)):
        assert prediction.risk.parts[0][1:] in text
        assert text.index(prediction.risk.parts[1]) < text.index("Decision:")


@pytest.mark.parametrize("drug", [None, "heparin"])
def test_likely_drugs_are_set_against_what_references_received(drug: str | None, finished_run: FinishedRun) -> None:
    scene = set_scene(load_run(finished_run("drug_recommendation", references="bank")))
    instances, labels = scene.instances, scene.run.label_vocabulary
    marked = 0
    for row in scene.own_rows.tolist():
        found = explain(scene, row, drug=drug, show_ids=True)
        assert found.drugs is not None
        row_of = {name: number for number, name in enumerate(instances.instance_ids)}
        likely = [each.label for each in found.drugs.rows]
        assert likely == ([drug] if drug else [option.label for option in found.prediction.options if option.chosen])
        for place, reference in enumerate(found.references):
            label = instances.labels[row_of[str(reference.person.instance_id)]]
            got = {code for code, on in zip(labels, label, strict=True) if on}
            assert [bool(each.received[place]) for each in found.drugs.rows] == [code in got for code in likely]
            assert set(found.drugs.others[reference.name]) == got - set(likely)
        visits = instances.history.filter(instances.history["instance"] == row)["visit"].to_list()
        codes = instances.cohort.codes["medication"]
        last = set(codes.filter(codes["visit"] == visits[-1])["code"].to_list()) if visits else set()
        assert {each.label for each in found.drugs.rows if each.at_last_visit} == last & set(likely)
        marked += len(last & set(likely))
    assert marked
    page = patient_page(found)
    assert "recommended" not in page
    assert "Medications of earlier visits" in page
    assert page.index("Drugs likely given") < page.index("Similar patients")


def test_known_interactions_and_other_drugs_are_said_by_name(finished_run: FinishedRun) -> None:
    scene = set_scene(load_run(finished_run("drug_recommendation", references="bank")))
    explained = (explain(scene, row) for row in scene.own_rows.tolist())
    found = next(
        each for each in explained if each.drugs and len(each.drugs.rows) > 1 and any(each.drugs.others.values())
    )
    assert found.drugs is not None
    first, second = sorted(row.label for row in found.drugs.rows)[:2]
    other = next(code for codes in found.drugs.others.values() for code in codes)
    names = {first: "First drug", second: "Second drug", other: "Other drug"}
    table = Interactions(frozenset({(first, second)}), frozenset({first, second}))
    shown = replace(found, drugs=with_interactions(replace(found.drugs, names=names), table))
    page = patient_page(shown)
    assert "1 known interaction among these drugs" in page
    assert "<li>Other drug</li>" in page
    for text in (page, patient_markdown(shown)):
        assert "First drug with Second drug" in text
    count = sum(bool(was) for was in found.drugs.rows[0].received)
    assert f"{count} of {len(found.references)}</td>" in page


def test_plain_words_come_first(finished_run: FinishedRun) -> None:
    for task in TASKS:
        scene = set_scene(load_run(finished_run(task, references="bank")))
        page = patient_page(explain(scene, busiest(scene)))
        head, fold, rest = page.partition("How this was computed")
        assert fold
        body = head[head.index("<main") :]
        for word in (
            "logit",
            "cosine",
            "tau ",
            "edge weight",
            "candidates",
            "split",
            "tied to",
            "lift ",
            "self-loop",
            *SETTINGS,
        ):
            assert word not in body.replace('class="tied"', "")
        assert "cosine" in rest
        assert "logit" in rest.lower()
        assert "inputs</dt><dd>retrospective" in rest
        if task != "length_of_stay":
            assert "tuned on validation: highest" in rest
        assert body.index("The patient's record") < body.index("Similar patients")


def test_a_page_without_references_speaks_of_none(finished_run: FinishedRun) -> None:
    scene = set_scene(load_run(finished_run(references="bank")))
    found = explain(scene, busiest(scene))
    alone = replace(found, references=(), counter_references=(), turning=None)
    assert "the similar patients are those whom the prediction uses" in patient_page(found)
    page = patient_page(alone)
    assert "Similarity is not causation" not in page
    assert "This is a research tool, not a medical device." in page


def test_probabilities_that_were_not_recalibrated_are_told(finished_run: FinishedRun) -> None:
    scene = set_scene(load_run(finished_run(references="bank")))
    assert scene.run.record.calibration is None
    page = patient_page(explain(scene, busiest(scene)))
    assert page.index(NOT_ADJUSTED) < page.index("How this was computed")
    logistic = Calibration(method="logistic", instances=102, intercept=-0.9, slope=0.3)
    record = scene.run.record.model_copy(update={"calibration": logistic})
    adjusted = replace(scene, run=replace(scene.run, record=record))
    assert NOT_ADJUSTED not in notes_on(adjusted)


def test_the_list_of_visits_has_no_column_that_the_records_do_not_fill(finished_run: FinishedRun) -> None:
    scene = set_scene(load_run(finished_run(references="bank")))
    found = next(each for each in (explain(scene, row) for row in scene.own_rows.tolist()) if each.record.has_trend)
    undated = tuple(replace(visit, day=None, stay=None) for visit in found.record.visits)
    bare = replace(found.record, visits=undated)
    # The whole hospital has no procedures.
    assert trend_columns(bare) == TrendColumns(days=False, stays=False, kinds=("diagnosis", "medication"))
    page = patient_page(replace(found, record=bare))
    for title in ("day", "days of stay", "procedures"):
        assert f'data-label="{title}"' not in page
    dated = (replace(undated[0], day=-30, stay=4), *undated[1:])
    page = patient_page(replace(found, record=replace(bare, visits=dated)))
    assert '<td class="n" data-label="day">−30</td>' in page
    assert '<td class="n" data-label="days of stay">4</td>' in page


def test_visits_of_one_patient_are_told_in_one_line(finished_run: FinishedRun) -> None:
    scene = set_scene(load_run(finished_run(references="bank")))
    first = explain(scene, busiest(scene)).references[0]
    visits = first.person.visits

    def at(name: str, age: str, number: int, **changes: Any) -> ExplainedReference:
        person = replace(first.person, name=name, age=age, sex="male", visits=visits[:1] * number)
        return replace(first, name=name, person=person, **{"weight": 12, "outcome": "not readmitted"} | changes)

    early, late = at("R1", "64 years", 19, weight=17), at("R2", "61 years", 6, differs=("more than 10 years younger",))
    assert as_one([early, late]) == VisitsAsOne(
        "2 visits of one patient, male, 61 to 64 years",
        ("more than 10 years younger",),
        "12 to 17 shared diagnoses",
        "each time not readmitted",
    )
    assert (
        as_one([early, at("R2", "64 years", 2, outcome="readmitted")]).outcome == "R1: not readmitted; R2: readmitted"
    )
    assert as_one([late]).about == "male, 61 years, 6 visits"


def test_the_order_of_the_references_is_told_where_measured_points_can_be_in_another(finished_run: FinishedRun) -> None:
    said = "so they can be in another order"
    for task in ("readmission", "drug_recommendation"):
        scene = set_scene(load_run(finished_run(task, references="bank")))
        found = explain(scene, busiest(scene))
        assert (said in patient_page(found)) == (task == "readmission")
        assert any(reference.points for reference in found.references) == (task == "readmission")


def test_who_speaks_against_a_prediction_is_named_with_who_of_them_it_uses(finished_run: FinishedRun) -> None:
    scene = set_scene(load_run(finished_run(references="bank")))
    found = next(
        each for each in (explain(scene, row) for row in scene.own_rows.tolist()) if len(each.counter_references) == 3
    )

    def page(*used: bool) -> str:
        against = zip(found.counter_references, used, strict=True)
        others = tuple(replace(each, is_neighbor=neighbor) for each, neighbor in against)
        return patient_page(replace(found, counter_references=others))

    assert "the most similar first: C1, C2, C3. The prediction uses none of them.</p>" in page(False, False, False)
    assert "C1, C2, C3. The prediction does not use C2 and C3.</p>" in page(True, False, False)
    assert "the most similar first: C1, C2, C3.</p>" in page(True, True, True)


def test_what_turns_a_decision_is_said_by_names(finished_run: FinishedRun) -> None:
    scene = set_scene(load_run(finished_run("drug_recommendation", references="bank")))
    row = busiest(scene)
    labels = scene.run.label_vocabulary
    decision = decision_for(scene.task, labels, names={labels[0]: "Insulins"}, threshold=0.5)
    after = np.zeros(len(labels))
    found = TurningSet((5, 6), after, is_smallest=True)
    said = turning_in_words(found, {5: "R1", 6: "R2", 7: "R3"}, decision, (0,), others=3).sentence
    assert said == (
        "Without R1 and R2 the decision would be “0 likely drugs” (no longer likely: Insulins). Leaving out fewer would "
        "not change it. The 3 other references, which are not shown, were kept throughout."
    )
    step = turning_in_words(replace(found, is_smallest=False), {5: "R1", 6: "R2"}, decision, (0,)).sentence
    assert step.endswith("They were found step by step: fewer may be enough.")
    named = {node: f"R{node}" for node in range(1, 11)}
    nothing = turning_in_words(None, named, decision, (0,)).sentence
    assert nothing.startswith("Whichever 3 or fewer of the 10 references are left out, the decision stays the same.")
    assert turning_in_words(None, {1: "R1"}, decision, (0,)).sentence.startswith("Without the only reference")
    assert row in scene.own_rows


def test_the_trend_shows_what_was_predicted_at_earlier_visits(finished_run: FinishedRun) -> None:
    scene = set_scene(load_run(finished_run(references="bank")))
    instances = scene.instances
    row = max(
        scene.own_rows.tolist(), key=lambda each: instances.history.filter(instances.history["instance"] == each).height
    )
    found = explain(scene, row)
    assert found.record.has_trend
    assert found.record.visits[-1].risk == pytest.approx(found.prediction.probability)
    earlier = found.record.visits[0]
    first = int(instances.frame["first_visit"][row])
    node = scene.node_of_row(int(instances.frame["visit"].index_of(first)))  # type: ignore[arg-type]
    assert earlier.risk == pytest.approx(float(scene.probabilities(node)[0]))
    assert (
        earlier.codes["diagnosis"]
        == instances.cohort.codes["diagnosis"]
        .filter(instances.cohort.codes["diagnosis"]["visit"] == first)["code"]
        .n_unique()
    )
