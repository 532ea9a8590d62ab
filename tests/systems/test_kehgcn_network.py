"""KEHGCN: hypergraph convolution, paths and similar patients held to plain numpy; no test patient in any of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from drug_networks import (
    SIZES,
    check_current_medications_change_nothing,
    check_gradients,
    check_padding_order_and_batch,
    make_batch,
    make_targets,
    some_interactions,
)
from systems.leak_checks import (
    check_blind_to_test,
    with_a_leak,
    with_all_labels,
    with_other_test_labels,
    with_other_test_patients,
)

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.systems.contract import RunContext
from patients_like_me.systems.drug_paths import known_paths
from patients_like_me.systems.features import Vocabularies
from patients_like_me.systems.hypergraph import HypergraphConvolution, hypergraph_operator, joined_incidence
from patients_like_me.systems.indications import read_indications
from patients_like_me.systems.kehgcn import SYSTEM, Kehgcn, KehgcnSettings, patients_of
from patients_like_me.systems.metapaths import Metapaths
from patients_like_me.systems.problem import Problem, only, problem_of
from patients_like_me.systems.training_visits import TrainingVisits
from patients_like_me.systems.triples import read_triples
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.registry import find_task

#: Nodes 0-8 diagnoses, 9-13 procedures, 14-20 medications; the outputs are the medications 2, 3, 1, 5, 6 and 7.
COUNTS = dict(SIZES.codes)
DRUGS = [15, 16, 14, 18, 19, 20]
EDGES = {
    "treat": [(0, 15), (15, 0), (0, 16), (16, 0), (3, 18)],
    "classification": [(15, 16), (16, 15), (0, 1), (1, 0), (0, 2)],
}


def incidence() -> np.ndarray:
    found = (np.random.default_rng(0).random((30, 21)) < 0.2).astype(float)
    found[:, 7] = 0
    return found


def network(**changes: Any) -> Kehgcn:
    from scipy.sparse import csr_array

    torch.manual_seed(0)
    settings = KehgcnSettings(**{"width": 8, "dropout": 0.0, "similar": 3, "target_rate": 1.0, **changes})
    model = Kehgcn(
        settings,
        SIZES,
        counts=COUNTS,
        operator=hypergraph_operator(csr_array(incidence())),
        edges=EDGES,
        drugs=DRUGS,
        rates=[0.3] * 6,
        patients=5,
        interactions=some_interactions(),
    )
    draw = np.random.default_rng(2)
    drugs = (draw.random((5, 6)) < 0.5).astype(np.float32)
    model.remember(torch.tensor(draw.normal(size=(5, 8)), dtype=torch.float32), torch.from_numpy(drugs))
    return model


def test_hypergraph_convolution_equals_plain_numpy() -> None:
    from scipy.sparse import csr_array

    visits, draw = incidence(), np.random.default_rng(1)
    torch.manual_seed(0)
    layer = HypergraphConvolution(hypergraph_operator(csr_array(visits)), 6, layers=2)
    nodes = draw.normal(size=(21, 6))
    weight = layer.weight.detach().double().numpy()
    expected = nodes
    for _ in range(2):
        means = []
        for code in range(21):
            own = [np.mean([expected[other] for other in np.flatnonzero(row)], axis=0) for row in visits if row[code]]
            means.append(np.mean(own, axis=0) if own else expected[code])
        expected = 1 / (1 + np.exp(-np.array(means) @ weight))
    with torch.no_grad():
        found = layer(torch.tensor(nodes, dtype=torch.float32)).numpy()
    assert not visits[:, 7].any()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_paths_equal_plain_numpy() -> None:
    torch.manual_seed(0)
    model = Metapaths(EDGES, 21, 5, slope=0.2)
    assert model.scores is not None
    model.scores.data = torch.tensor([0.7, -0.4])
    vectors = torch.randn(21, 5)
    expected = np.zeros((21, 5))
    shares = np.exp([0.7, -0.4])
    for node in range(21):
        having = [place for place, name in enumerate(model.names) if any(one == node for one, _ in EDGES[name])]
        for place in having:
            path = model.paths[place]
            kept = {name: value.double().numpy() for name, value in path.state_dict().items()}  # type: ignore[union-attr]
            mixed = vectors.double().numpy() @ kept["mix.weight"].T
            heard = [other for one, other in EDGES[model.names[place]] if one == node]
            scores = np.array([mixed[node] @ kept["of_receiver"] + mixed[other] @ kept["of_sender"] for other in heard])
            scores = np.exp(np.where(scores > 0, scores, 0.2 * scores))
            attended = (scores / scores.sum()) @ mixed[heard]
            prior = {"treat": 1.0, "classification": 0.8}[model.names[place]]
            expected[node] += prior * shares[place] / shares[having].sum() * attended
    with torch.no_grad():
        np.testing.assert_allclose(model(vectors).numpy(), expected, atol=1e-5)
    assert not expected[5].any()


def test_similar_patients_and_the_probability_equal_plain_numpy() -> None:
    model, batch = network().eval(), make_batch(4)
    with torch.no_grad():
        nodes = model.nodes()
        query, patient = (each.double().numpy() for each in model.hyperedges(nodes, batch))
        # The last of them is no training patient: nobody is left out.
        own = torch.tensor([0, 1, 2, -1])
        found = torch.sigmoid(model(batch, own)).numpy()
        person = model.person(torch.zeros(4, 6), batch).numpy()
    drugs = nodes.double().numpy()[DRUGS]
    memory, had = model.memory.double().numpy(), model.memory_drugs.double().numpy()

    def cosine(one: np.ndarray, other: np.ndarray) -> float:
        return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))

    for row in range(4):
        near = sorted(
            ((max(0.0, cosine(patient[row], memory[j])), j) for j in range(5) if j != own[row]), reverse=True
        )[:3]
        total = sum(weight for weight, _ in near)
        share = sum(weight * had[j] for weight, j in near) / total
        logits = [
            model.scale.item() * cosine(query[row], drug) + model.bias[place].item() + person[row, place]
            for place, drug in enumerate(drugs)
        ]
        expected = 1 / (1 + np.exp(-np.array(logits))) * (1 + share) / 2
        np.testing.assert_allclose(found[row], expected, atol=1e-5)


def test_named_checks() -> None:
    check_padding_order_and_batch(network())
    check_current_medications_change_nothing(network())
    model = network(target_rate=0.0, control_step=5.0)
    check_gradients(model, lambda: model.loss(make_batch(), make_targets()))


@pytest.fixture(scope="module")
def drug_instances(coded_cohort: Path) -> Instances:
    return build_instances(Cohort.load(coded_cohort), find_task("drug_recommendation"))


@pytest.fixture(scope="module")
def problem(drug_instances: Instances) -> Problem:
    return problem_of(drug_instances)


def test_no_test_patient_is_in_hypergraph_paths_and_memory(
    drug_instances: Instances, made_up_knowledge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLM_CODES", str(made_up_knowledge))
    settings = KehgcnSettings()

    def known(given: Problem) -> list[Any]:
        vocabularies = Vocabularies.of_training(given.instances, given.train)
        visits = TrainingVisits.of(given, vocabularies)
        facts, _ = known_paths(given, settings, vocabularies, visits)
        operator = hypergraph_operator(joined_incidence([visits.incidence[kind] for kind in facts["nodes"]]))
        return [operator, facts["edges"]["treat"], facts["rates"], patients_of(given)[2].numpy()]

    knowing = with_all_labels(drug_instances)
    for change in (with_other_test_patients, with_other_test_labels):
        check_blind_to_test(knowing, known, change)
        with pytest.raises(AssertionError, match="records of test patients"):
            check_blind_to_test(knowing, lambda given: known(with_a_leak(given)), change)


def with_ids(problem: Problem, form: str) -> Instances:
    """Return the training instances of patients whose ids are written in another form."""
    cohort = problem.instances.cohort
    numbers = pl.col("subject").cast(pl.String)
    patients = cohort.patients.with_columns(pl.format(form, numbers).alias("subject_id"))
    return only(replace(problem.instances, cohort=replace(cohort, patients=patients)), problem.train)


def test_who_returns_with_another_spelling_of_the_id_is_not_similar_to_the_own_records(
    problem: Problem, made_up_knowledge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLM_CODES", str(made_up_knowledge))
    named = replace(problem, instances=replace(problem.instances, cohort=with_ids(problem, "{}").cohort))
    fitted = SYSTEM.fit(named, RunContext(KehgcnSettings(epochs=1, width=8, similar=3)))
    own, again, stranger = (SYSTEM.predict(fitted, with_ids(problem, form)) for form in ("{}", "00{}", "other {}"))
    np.testing.assert_array_equal(own, again)
    assert np.abs(own - stranger).max() > 0.01


def test_triples_indications_and_their_names(
    problem: Problem, made_up_knowledge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLM_CODES", str(made_up_knowledge))
    lines = [
        "head\trelation\ttail",
        "diagnosis:100\ttreated_by\tmedication:A10A",
        "diagnosis:101\tabnormality\tglucose",
        "glucose\tingredient_of\tmedication:B05D",
        "diagnosis:102\tclass\tclots",
        "clots\tclassifies\tmedication:B01A",
        "diagnosis:103\tcontraindicated\tmedication:B01A",
        "diagnosis:999\ttreated_by\tmedication:A10A",
    ]
    (tmp_path / "triples.tsv").write_text("\n".join(lines) + "\n")
    settings = KehgcnSettings(triples=str(tmp_path / "triples.tsv"))
    assert SYSTEM.title_of(settings) == "KEHGCN"
    assert SYSTEM.knowledge_under(settings) == ("atc3_interactions",)  # type: ignore[misc]
    assert SYSTEM.knowledge_under(KehgcnSettings()) == ("atc3_interactions", "ccs_multi_dx")  # type: ignore[misc]
    vocabularies = Vocabularies.of_training(problem.instances, problem.train)
    facts, notes = known_paths(problem, settings, vocabularies, TrainingVisits.of(problem, vocabularies))
    names = [f"{kind}:{code}" for kind, codes in facts["nodes"].items() for code in codes]
    for path, pair in (
        ("treat", ("diagnosis:100", "medication:A10A")),
        ("molecular", ("diagnosis:101", "medication:B05D")),
        ("classification", ("diagnosis:102", "medication:B01A")),
    ):
        joined = {tuple(sorted((names[one], names[other]))) for one, other in facts["edges"][path]}
        assert joined == {pair}
    labels = problem.instances.label_vocabulary
    diagnoses = vocabularies.codes["diagnosis"]
    assert [(diagnoses[one], labels[other]) for one, other in facts["harmful"]] == [("103", "B01A")]
    assert "1 contraindications" in " ".join(notes)
    assert "not used" not in " ".join(notes)
    blind = settings.model_copy(update={"without": ("interactions",)})
    _, said = known_paths(problem, blind, vocabularies, TrainingVisits.of(problem, vocabularies))
    assert "1 contraindications among the codes, which are not used" in " ".join(said)
    fitted = SYSTEM.fit(problem, RunContext(settings.model_copy(update={"epochs": 1, "width": 8})))
    assert fitted.facts["triples_digest"]
    # Hypergraph and memory are kept and are no weights.
    kept = {name: value.size for name, value in fitted.arrays.items()}
    known_of_records = sum(kept[name] for name in ("convolution.operator", "memory", "memory_drugs"))
    assert fitted.account.trained_weights is not None
    assert 0 < fitted.account.trained_weights < sum(kept.values()) - known_of_records

    (tmp_path / "own.csv").write_text("ccs,atc3\n100,B01A\n100,nonsense\n")
    settings = KehgcnSettings(indications=str(tmp_path / "own.csv"), without=("diagnosis-hierarchy", "interactions"))
    assert SYSTEM.title_of(settings) == "KEHGCN[no-UMLS,indications,no-interactions,no-diagnosis-hierarchy]"
    facts, notes = known_paths(problem, settings, vocabularies, TrainingVisits.of(problem, vocabularies))
    assert {tuple(sorted(names[place] for place in edge)) for edge in facts["edges"]["treat"]} == {
        ("diagnosis:100", "medication:B01A")
    }
    assert "1 of 2 indications could be mapped to codes" in notes


def test_wrong_files_end_in_a_sentence(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.tsv"
    for text, message in (
        ("a\tb\tc\n", "not a header of triples"),
        ("head\trelation\ttail\nx\ty\n", r"line 2 of .* has 2 values"),
        ("head\trelation\ttail\n", "has no triple"),
    ):
        wrong.write_text(text)
        with pytest.raises(PlmError, match=message):
            read_triples(wrong)
    wrong.write_text("what\tever\n1\t2\n")
    with pytest.raises(PlmError, match=r"has no column of drugs; it has what, ever"):
        read_indications(wrong, {})


def test_indications_of_real_tables_are_mapped(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from patients_like_me.codes.store import CodeStore

    store = CodeStore(tmp_path / "codes")
    store.add(shared_data / "codes" / "rxcui_to_atc3_graphcare.csv.gz")
    monkeypatch.setenv("PLM_CODES", str(store.folder))
    triples, sentence = read_indications(shared_data / "codes" / "medi_hps_rxcui_icd9.csv.gz", {})
    assert ("diagnosis:98", "treated_by", "medication:C03A") in triples, sentence
    names = {"98": "Essential hypertension", "49": "Diabetes mellitus without complication"}
    triples, sentence = read_indications(shared_data / "codes" / "pharmacotherapydb_indications.tsv", names)
    assert ("diagnosis:98", "treated_by", "medication:C09A") in triples, sentence
