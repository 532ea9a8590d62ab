"""GraphCare: the bi-attention message held to plain numpy, its graph, and no test patient in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model.llm.fake_server import fake_server
from systems.leak_checks import (
    check_blind_to_test,
    with_a_leak,
    with_all_labels,
    with_other_test_labels,
    with_other_test_patients,
)
from tiny_visits import CHECKS, SIZES, evaluated, random_batch
from torch import nn

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.systems.contract import RunContext
from patients_like_me.systems.features import Vocabularies
from patients_like_me.systems.graphcare import SYSTEM, GraphCare, GraphCareSettings, knowledge
from patients_like_me.systems.knowledge_graph import KnowledgeGraph, graph_of_triples
from patients_like_me.systems.problem import Problem, problem_of
from patients_like_me.systems.train import train
from patients_like_me.systems.triples import Triple, read_triples
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.registry import find_task

#: Nodes 0-18 are the codes of all kinds; diagnoses 1 and 2 share a node; 19-23 are other entities.
NODES = 24


def made_up_graph() -> KnowledgeGraph:
    draw = np.random.default_rng(0)
    pairs = {(int(a), int(r), int(b)) for a, r, b in draw.integers(0, (NODES, 3, NODES), (40, 3)) if a != b}
    edges = sorted({edge for a, r, b in pairs for edge in ((a, r, b), (b, r, a))})
    return KnowledgeGraph(
        nodes=draw.normal(size=(NODES, 7)).astype(np.float32),
        relations=draw.normal(size=(3, 7)).astype(np.float32),
        edges=np.array(edges),
        node_of_code={
            "diagnosis": [0, 0, *range(2, 9)],
            "procedure": list(range(9, 13)),
            "medication": list(range(13, 19)),
        },
        entities=NODES + 1,
    )


def network(**changes: Any) -> GraphCare:
    torch.manual_seed(0)
    settings = GraphCareSettings(**{"hidden": 6, "layers": 2, "dropout": 0.0, "decay": 0.3, **changes})
    return GraphCare(settings, SIZES, made_up_graph())


@pytest.mark.parametrize("attention", ["full", "low_rank", "diagonal"])
def test_bi_attention_message_and_prediction_equal_plain_numpy(attention: str) -> None:
    model, batch, graph = network(attention=attention, rank=3), random_batch(5), made_up_graph()
    kept = {name: value.double().numpy() for name, value in model.state_dict().items()}
    found = evaluated(model, batch).numpy()
    first = graph.nodes @ kept["of_nodes.weight"].T + kept["of_nodes.bias"]
    relations = graph.relations @ kept["of_relations.weight"].T + kept["of_relations.bias"]
    for row in range(5):
        length = int(batch.visit_mask[row].sum())
        visits = []
        for visit in range(length):
            codes = {
                graph.node_of_code[kind][code - 1]
                for kind in SIZES.codes
                for code in batch.codes[kind][row, visit].tolist()
                if code
            }
            visits.append(codes)
        direct = sorted(set().union(*visits))
        inside = sorted({*direct, *(tail for head, _, tail in graph.edges.tolist() if head in direct)})
        states = {node: first[node] for node in inside}
        for number in range(2):
            name = f"layers.{number}"
            weights = dict.fromkeys(inside, 0.0)
            for visit, codes in enumerate(visits):
                present = np.array([float(node in codes) for node in range(NODES)])
                if attention == "full":
                    scores = kept[f"{name}.node_scores.weight"] @ present
                elif attention == "diagonal":
                    scores = kept[f"{name}.node_scores.weight"] * present
                else:
                    scores = kept[f"{name}.node_scores.up"] @ (kept[f"{name}.node_scores.down"] @ present)
                scores = np.exp(scores + kept[f"{name}.node_scores.bias"])
                alpha = {node: scores[node] / scores[inside].sum() for node in inside}
                # The newest visit counts fully, each one before it less.
                beta = np.tanh(kept[f"{name}.visit_score"] @ present) * np.exp(-0.3 * (length - 1 - visit))
                for node in inside:
                    weights[node] += alpha[node] * beta
            new = {}
            for node in inside:
                total = (1 + kept[f"{name}.epsilon"]) * states[node]
                for head, relation, tail in graph.edges.tolist():
                    if tail == node and head in states and (head in direct or tail in direct):
                        said = relations[relation]
                        message = weights[head] * states[head] + (kept[f"{name}.relation_score.weight"] @ said) * said
                        total = total + np.maximum(message, 0)
                new[node] = np.maximum(kept[f"{name}.mix.weight"] @ total + kept[f"{name}.mix.bias"], 0)
            states = new
        of_graph = np.mean([states[node] for node in inside], axis=0) if inside else np.zeros(6)
        of_record = np.mean([first[node] for node in direct], axis=0) if direct else np.zeros(6)
        expected = kept["head.output.weight"] @ np.concatenate([of_graph, of_record]) + kept["head.output.bias"]
        expected = expected + kept["head.person.weight"] @ batch.demographics[row].double().numpy()
        np.testing.assert_allclose(found[row], expected, atol=1e-5)


@pytest.mark.parametrize("check", CHECKS)
def test_named_checks(check: Callable[[nn.Module], None]) -> None:
    check(network())


def test_triples_become_nodes_that_mean_the_same() -> None:
    words = {"diagnosis:1": "kidney failure", "medication:A": "water pill"}
    vectors = {
        "kidney failure": [1.0, 0.0, 0.0],
        "renal failure": [0.99, 0.05, 0.0],
        "water pill": [0.0, 1.0, 0.0],
        "treats": [0.0, 0.0, 1.0],
        "is": [0.0, 1.0, 0.0],
        "far away": [1.0, 1.0, 1.0],
    }
    triples = [
        Triple("medication:A", "treats", "renal failure"),
        Triple("renal failure", "is", "diagnosis:1"),
        Triple("far away", "is", "farther away"),
    ]
    graph = graph_of_triples(
        triples,
        {"diagnosis": ("1",), "medication": ("A",)},
        words,
        lambda names: np.array([vectors[name] for name in names], dtype=np.float32),
        threshold=0.15,
        hops=1,
    )
    # Both names of one disease are one node, what touches no code is left out, and a node tells itself nothing.
    assert (graph.entities, len(graph.nodes)) == (3, 2)
    assert graph.node_of_code == {"diagnosis": [0], "medication": [1]}
    np.testing.assert_allclose(graph.nodes[0], [0.995, 0.025, 0.0], atol=1e-6)
    assert {(head, tail) for head, _, tail in graph.edges.tolist()} == {(0, 1), (1, 0)}
    with pytest.raises(PlmError, match="no triple names a code"):
        graph_of_triples(triples[2:], {"diagnosis": ("1",)}, words, lambda names: np.eye(3), threshold=0.1, hops=1)


@pytest.fixture(scope="module")
def problem(coded_cohort: Path) -> Problem:
    return problem_of(build_instances(Cohort.load(coded_cohort), find_task("readmission")))


@pytest.fixture(scope="module")
def drug_instances(coded_cohort: Path) -> Instances:
    return build_instances(Cohort.load(coded_cohort), find_task("drug_recommendation"))


def test_no_test_patient_is_in_the_graph_or_its_clusters(
    drug_instances: Instances, made_up_knowledge: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLM_CODES", str(made_up_knowledge))
    settings = GraphCareSettings(backbone={"name": str(tiny_folder)}, threshold=1e-5, co_occurring=4)
    assert SYSTEM.title_of(settings) == "GraphCare[ontology]"

    def graph(given: Problem) -> list[Any]:
        vocabularies = Vocabularies.of_training(given.instances, given.train)
        found, _, _ = knowledge(given, RunContext(settings), vocabularies)
        return [found.nodes, found.edges, found.relations]

    knowing = with_all_labels(drug_instances)
    for change in (with_other_test_patients, with_other_test_labels):
        check_blind_to_test(knowing, graph, change)
        with pytest.raises(AssertionError, match="records of test patients"):
            check_blind_to_test(knowing, lambda given: graph(with_a_leak(given)), change)


def test_own_triples_need_no_tables(
    problem: Problem, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLM_CODES", str(tmp_path / "nothing"))
    (tmp_path / "own.tsv").write_text(
        "head\trelation\ttail\ndiagnosis:100\tcauses\tfever\nfever\tneeds\tmedication:A10A\n"
    )
    small = {"backbone": {"name": str(tiny_folder)}, "hidden": 4, "layers": 1, "epochs": 1, "threshold": 1e-5}
    settings = GraphCareSettings(triples=str(tmp_path / "own.tsv"), **small)
    assert SYSTEM.title_of(settings) == "GraphCare"
    assert SYSTEM.missing_knowledge(settings) == {}
    assert set(SYSTEM.missing_knowledge(GraphCareSettings())) == {"ccs_multi_dx", "ccs_multi_pr"}
    without = GraphCareSettings(without=("diagnosis-hierarchy", "procedure-hierarchy"))
    assert SYSTEM.missing_knowledge(without) == {}
    assert SYSTEM.title_of(without) == "GraphCare[ontology,no-diagnosis-hierarchy,no-procedure-hierarchy]"
    fitted = SYSTEM.fit(problem, RunContext(settings))
    assert any(note.startswith("knowledge graph: ") for note in fitted.account.notes)


def test_triples_of_a_language_model_are_written_once(
    cohort_folder: Path, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLM_LLM_CACHE", str(tmp_path / "answers"))
    small = {"backbone": {"name": str(tiny_folder)}, "hidden": 4, "layers": 1, "epochs": 1, "threshold": 1e-5}
    with fake_server() as server:
        llm = {"backend": "endpoint", "model": "fake", "address": server.address}
        settings = GraphCareSettings(**small, llm_triples=True, llm=llm)
        assert SYSTEM.title_of(settings) == "GraphCare[fake]"
        assert SYSTEM.missing_knowledge(settings) == {}
        run = train(cohort_folder, "readmission", tmp_path / "run", system="graphcare", settings=settings)
        asked = len(server.asked)
        given = problem_of(build_instances(Cohort.load(cohort_folder), find_task("readmission")))
        assert asked == sum(SYSTEM.llm_calls(given, settings).values()) > 10  # type: ignore[misc]
        # Another seed asks nothing, and what was said is a file that can be handed over.
        again = settings.model_copy(update={"seed": 1})
        train(cohort_folder, "readmission", tmp_path / "other", system="graphcare", settings=again)
        assert len(server.asked) == asked
    known = read_triples(run.folder / "triples.tsv")
    assert Triple("diagnosis:sepsis", "is a", "diagnosis") in known
    assert any("triples by fake" in note for note in run.results.notes)
    assert run.results.seconds > sum(record["seconds"] for record in run.epoch_records())
