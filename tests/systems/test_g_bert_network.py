from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from drug_networks import (
    SIZES,
    Array,
    Batch,
    check_current_medications_change_nothing,
    check_gradients,
    check_padding_order_and_batch,
    close,
    logits_of,
    make_batch,
    make_targets,
    seeded,
    softmax,
    train,
    weights_of,
)
from pydantic import ValidationError

from patients_like_me.systems.g_bert import (
    GBERT,
    KINDS,
    SYSTEM,
    GBERTSettings,
    masked,
    pretraining_visits,
)
from patients_like_me.systems.ontology_attention import OntologyEmbedding, ancestor_numbers
from patients_like_me.systems.visit_layers import Sizes

SMALL = GBERTSettings(width=12, graph_heads=3, heads=2, feed_forward=10, dropout=0.0, attention_dropout=0.0)
#: Nine diagnoses in three groups and two chapters; the last is in no tree.
GROUPS = {str(code): (f"{code // 3}", "I" if code < 3 else "II") for code in range(8)}
WITHOUT_CURRENT_MEDICATIONS = ("diagnosis", "procedure")


def make(settings: GBERTSettings = SMALL) -> GBERT:
    ancestors = {
        "diagnosis": ancestor_numbers([str(code) for code in range(9)], GROUPS),
        "procedure": ancestor_numbers("vwxyz", {"v": ("1",), "w": ("1",)}),
        "medication": ancestor_numbers(
            ["A02B", "A02A", "B01A", "C07A", "C07B", "N02B", "N02A"], {"A02B": ("A02", "A")}
        ),
    }
    with seeded():
        network = GBERT(SIZES, settings, ancestors=ancestors, current=WITHOUT_CURRENT_MEDICATIONS)
        # The small first weights of the paper hide effects below the tolerance in a network this narrow.
        for module in network.modules():
            if isinstance(module, torch.nn.Linear):
                torch.nn.init.normal_(module.weight, std=0.3)
        return network


def attended(weights: dict[str, Array], nodes: Array, sources_of: list[list[int]]) -> Array:
    """One graph attention layer, node by node and head by head."""
    mixed = nodes @ weights["attention.mix.weight"].T
    result = np.zeros_like(mixed)
    for node, sources in enumerate(sources_of):
        for head in range(3):
            part = slice(4 * head, 4 * head + 4)
            scores = np.array(
                [
                    mixed[source, part] @ weights["attention.of_source"][head]
                    + mixed[node, part] @ weights["attention.of_receiver"][head]
                    for source in sources
                ]
            )
            scores = np.where(scores > 0, scores, 0.2 * scores)
            result[node, part] = softmax(scores) @ mixed[sources, part]
    return result + weights["attention.bias"]


def test_the_two_stage_attention_against_numpy() -> None:
    names = [str(code) for code in range(9)]
    with seeded():
        embedding = OntologyEmbedding(ancestor_numbers(names, GROUPS), width=12, heads=3, slope=0.2)
    order = [*names, "root", "g0", "I", "g1", "II", "g2"]
    parent = {"g0": "I", "I": "root", "g1": "II", "g2": "II", "II": "root", "8": "root"}
    parent.update({str(code): f"g{code // 3}" for code in range(8)})
    above: dict[str, list[str]] = {}
    for name in names:
        above[name] = [name]
        while above[name][-1] in parent:
            above[name].append(parent[above[name][-1]])
    weights = weights_of(embedding)
    upward = [[at, *(order.index(child) for child in parent if parent[child] == name)] for at, name in enumerate(order)]
    downward = [[order.index(found) for found in above.get(name, [name])] for name in order]
    expected = attended(weights, attended(weights, weights["nodes"], upward), downward)[:9]
    close(embedding(), expected)


def test_the_layout_is_earlier_means_and_the_current_visit() -> None:
    network, batch = make().eval(), make_batch()
    found = logits_of(network, batch)
    weights = weights_of(network)
    for row in range(8):
        length = int(batch.visit_mask[row].sum())
        vectors = {}
        for kind in KINDS:
            visits = []
            for visit in range(length):
                codes = batch.codes[kind][row, visit]
                with torch.no_grad():
                    encoded = network.encode({kind: codes[codes > 0][None]})[kind][0].double().numpy()
                mapped = weights[f"mapping.{kind}.0.weight"] @ encoded + weights[f"mapping.{kind}.0.bias"]
                visits.append(np.maximum(mapped, 0))
            vectors[kind] = visits
        parts = [np.mean(vectors[kind][:-1], axis=0) if length > 1 else weights[f"no_history.{kind}"] for kind in KINDS]
        parts += [vectors[kind][-1] for kind in WITHOUT_CURRENT_MEDICATIONS]
        hidden = np.maximum(weights["head.0.weight"] @ np.concatenate(parts) + weights["head.0.bias"], 0)
        expected = weights["head.2.weight"] @ hidden + weights["head.2.bias"]
        close(found[row], expected + weights["person.person.weight"] @ batch.demographics[row].numpy())


def test_it_treats_visits_as_every_network_must() -> None:
    check_padding_order_and_batch(make())
    check_current_medications_change_nothing(make())


def test_gradients_reach_every_parameter() -> None:
    network, batch, targets = make(SMALL.model_copy(update={"mask_rate": 0.5})), make_batch(), make_targets()

    def loss() -> torch.Tensor:
        entropy = torch.nn.functional.binary_cross_entropy_with_logits(network(batch), targets, reduction="none")
        visits = pretraining_visits(batch, labels=targets, medication_of_label=torch.tensor([2, 3, 1, 5, 6, 7]))
        return entropy.mean(1) + network.pretraining_loss(visits)

    check_gradients(network, loss)


def test_it_overfits_eight_instances() -> None:
    network, batch, targets = make(), make_batch(), make_targets()
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    train(network, lambda: loss(network(batch), targets), 60, rate=0.01)
    assert torch.equal(logits_of(network, batch) > 0, targets > 0)


def test_pretraining_learns_the_sets_of_training_visits() -> None:
    network, batch = make(SMALL.model_copy(update={"mask_rate": 0.01})), make_batch()
    visits = pretraining_visits(batch, labels=make_targets(), medication_of_label=torch.tensor([2, 3, 1, 5, 6, 0]))
    before = network.pretraining_loss(visits).mean().item()
    with seeded():
        train(network, lambda: network.pretraining_loss(visits), 60, rate=0.01)
    assert network.pretraining_loss(visits).mean().item() < 0.4 * before


def test_pretraining_visits_are_the_current_ones_with_their_labels() -> None:
    batch, labels = make_batch(2), torch.tensor([[1.0, 0, 0, 0, 0, 1], [0, 1, 1, 0, 0, 0]])
    found = pretraining_visits(batch, labels=labels, medication_of_label=torch.tensor([2, 3, 1, 5, 6, 0]))
    assert torch.equal(
        found["diagnosis"], torch.stack([batch.codes["diagnosis"][0, 0], batch.codes["diagnosis"][1, 1]])
    )
    assert found["medication"].tolist() == [[2, 0], [3, 1]]


def test_a_visit_without_codes_of_a_kind_predicts_nothing_from_it() -> None:
    network = make().eval()
    codes = {kind: torch.tensor([[1, 2], [0, 0]]) for kind in KINDS}
    assert network.pretraining_loss(codes)[1] == 0


def test_masks_hide_the_stated_share() -> None:
    codes = torch.randint(0, 51, (400, 50), generator=torch.Generator().manual_seed(0))
    with seeded():
        found = masked(codes, 1000, 0.15)
    real = codes > 0
    assert torch.all(found[~real] == 0)
    assert float((found[real] == 1001).float().mean()) == pytest.approx(0.12, abs=0.01)
    assert float((found[real] != codes[real]).float().mean()) == pytest.approx(0.135, abs=0.01)


def test_codes_of_a_kind_that_the_data_lack_are_left_out() -> None:
    batch = make_batch()
    sizes = replace(SIZES, codes={"diagnosis": 9})
    network = GBERT(sizes, SMALL, ancestors={"diagnosis": np.zeros((9, 0), dtype=np.int64)})
    only = Batch({"diagnosis": batch.codes["diagnosis"]}, batch.visit_mask, batch.demographics)
    assert logits_of(network, only).shape == (8, 6)


def test_names_and_settings() -> None:
    assert SYSTEM.title_of(GBERTSettings()) == "G-BERT"
    assert SYSTEM.title_of(GBERTSettings(without=("diagnosis-hierarchy",))) == "G-BERT[no-diagnosis-hierarchy]"
    with pytest.raises(ValidationError, match="width 301 is not a multiple of graph_heads 4"):
        GBERTSettings(width=301)


def one_code_each(numbers: Array) -> tuple[Batch, torch.Tensor]:
    """One visit with one code each; the label is a fact about the code's group of ten."""
    codes = {"diagnosis": torch.as_tensor(numbers).view(-1, 1, 1)}
    batch = Batch(codes, torch.ones(len(numbers), 1, dtype=torch.bool), torch.zeros(len(numbers), 0))
    return batch, torch.as_tensor((numbers - 1) // 10 % 2, dtype=torch.float32)[:, None]


def test_ancestors_matter_for_codes_that_training_never_saw() -> None:
    codes = [str(number) for number in range(1, 401)]
    groups = ancestor_numbers(codes, {code: (str((int(code) - 1) // 10 % 10),) for code in codes})
    numbers = np.random.default_rng(0).permutation(400) + 1
    sizes = Sizes({"diagnosis": 400}, demographics=0, outputs=1)
    settings = SMALL.model_copy(update={"width": 16, "graph_heads": 2, "layers": 1})

    def score(ancestors: Array, seed: int) -> float:
        with seeded(seed):
            network = GBERT(sizes, settings, ancestors={"diagnosis": ancestors})
        batch, labels = one_code_each(numbers[:200])
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        # Few steps: each code occurs once, and more of them would learn the codes by heart.
        train(network, lambda: loss(network(batch), labels), 30, rate=0.01)
        unseen, answers = one_code_each(numbers[200:])
        return float(((logits_of(network, unseen) > 0) == (answers > 0)).float().mean())

    assert np.mean([score(groups, seed) for seed in range(3)]) > 0.9
    assert np.mean([score(np.zeros((400, 0), dtype=np.int64), seed) for seed in range(3)]) < 0.6
