"""GRAM: embeddings from ancestors held to plain numpy, and rare codes that need them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
from tiny_visits import (
    CHECKS,
    SIZES,
    VisitBatch,
    accuracy,
    array,
    eight_instances,
    evaluated,
    fit,
    gru_states,
    head_logits,
    linear,
    random_batch,
    softmax,
    visit_vectors,
)
from torch import Tensor, nn

from patients_like_me.errors import PlmError
from patients_like_me.systems.gram import Gram, GramSettings, ontology_of
from patients_like_me.systems.visit_layers import Sizes

VOCABULARY = {kind: [f"{kind[0]}{number}" for number in range(1, count + 1)] for kind, count in SIZES.codes.items()}
#: Depths differ, an ancestor has the name of a code, and the last procedure has no ancestor but the root.
ANCESTORS: dict[str, dict[str, Sequence[str]]] = {
    "diagnosis": {
        code: [f"group {at // 2}", f"chapter {at // 4}"][at % 2 :] for at, code in enumerate(VOCABULARY["diagnosis"])
    },
    "procedure": {code: ["p1"] for code in VOCABULARY["procedure"][:-1]},
    "medication": {code: [f"class {at % 3}", "drug"] for at, code in enumerate(VOCABULARY["medication"])},
}


def network() -> Gram:
    torch.manual_seed(0)
    settings = GramSettings(embedding=10, attention=7, hidden=12, dropout=0.0)
    return Gram(settings, SIZES, ontology_of(VOCABULARY, ANCESTORS))


def expected_mix(model: Gram, kind: str, code: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the names, weights and the mixed embedding of one code, from names alone."""
    above = [f"{kind} group {name}" for name in ANCESTORS[kind].get(code, ())]
    names = [f"{kind} {code}", *above, f"{kind} root"]
    vectors = [array(model.basic)[model.nodes.index(name)] for name in names]
    scores = [
        float(linear(model.score, np.tanh(linear(model.pair, np.concatenate([vectors[0], vector]))))[0])
        for vector in vectors
    ]
    weights = softmax(np.array(scores))
    return names, weights, weights @ np.array(vectors)


def test_embeddings_and_attention_equal_plain_numpy() -> None:
    model = network()
    # Larger weights than at the start, so that the attention is far from even.
    model.score.weight.data *= 10
    model.basic.data[1:] = torch.randn(model.basic[1:].shape, generator=torch.Generator().manual_seed(1)) * 2

    strongest, scored = 0.0, []
    for kind, codes in VOCABULARY.items():
        mixed = array(model.mixed(kind))
        assert not mixed[0].any()
        for number, code in enumerate(codes, start=1):
            names, weights, vector = expected_mix(model, kind, code)
            np.testing.assert_allclose(mixed[number], vector, atol=1e-5)
            watching = model.score.register_forward_hook(lambda _module, given, _found: scored.append(len(given[0])))
            shown = model.ancestor_attention(kind, number)
            watching.remove()
            assert [name for name, _ in shown] == names
            np.testing.assert_allclose([weight for _, weight in shown], weights, atol=1e-5)
            strongest = max(strongest, weights.max())
    assert strongest > 0.8
    # A page asks for each code of a record: the attention of all others, each time, would take minutes.
    assert set(scored) == {1}


def test_forward_equals_plain_numpy() -> None:
    model, batch = network(), random_batch(6)
    tables = {kind: model.mixed(kind) for kind in SIZES.codes}
    logits = evaluated(model, batch)

    for row in range(6):
        states = gru_states(model.gru.gru, np.tanh(visit_vectors(tables, batch, row)))
        np.testing.assert_allclose(array(logits[row]), head_logits(model.head, states[-1], batch, row), atol=1e-5)


def test_codes_without_ancestors_are_listed_and_a_missing_hierarchy_is_refused() -> None:
    assert ontology_of(VOCABULARY, ANCESTORS).without == {"diagnosis": (), "procedure": ("p4",), "medication": ()}
    with pytest.raises(PlmError, match="GRAM has no hierarchy of procedure codes"):
        ontology_of(VOCABULARY, {kind: table for kind, table in ANCESTORS.items() if kind != "procedure"})
    with pytest.raises(PlmError, match="numbers 4 procedure codes, the vocabulary has 5"):
        Gram(
            GramSettings(),
            Sizes({**SIZES.codes, "procedure": 5}, demographics=0, outputs=1),
            ontology_of(VOCABULARY, ANCESTORS),
        )


@pytest.mark.parametrize("check", CHECKS)
def test_named_checks(check: Callable[[nn.Module], None]) -> None:
    check(network())


def test_overfits_eight_instances() -> None:
    assert fit(network(), *eight_instances(), steps=150) < 0.05


def rare_codes(numbers: np.ndarray) -> tuple[VisitBatch, Tensor]:
    """One visit with one code each; the label is a fact about the code's group of ten."""
    batch = VisitBatch(
        {"diagnosis": torch.from_numpy(numbers).view(-1, 1, 1)},
        torch.ones(len(numbers), 1, dtype=torch.bool),
        torch.zeros(len(numbers), 1),
        torch.ones(len(numbers), dtype=torch.bool),
        torch.zeros(len(numbers), 0),
    )
    return batch, torch.from_numpy(((numbers - 1) // 10 % 2).astype(np.float32)).unsqueeze(1)


def test_ancestors_matter_for_codes_that_training_never_saw() -> None:
    codes = [str(number) for number in range(1, 401)]
    groups = {"diagnosis": {code: [str((int(code) - 1) // 10 % 10)] for code in codes}}
    numbers = np.random.default_rng(0).permutation(400) + 1
    seen, unseen = numbers[:200], numbers[200:]

    def score(ancestors: Mapping[str, Mapping[str, Sequence[str]]], seed: int) -> float:
        torch.manual_seed(seed)
        settings = GramSettings(embedding=16, attention=16, hidden=16, dropout=0.0)
        sizes = Sizes({"diagnosis": 400}, demographics=0, outputs=1)
        model = Gram(settings, sizes, ontology_of({"diagnosis": codes}, ancestors))
        # Few steps: each code occurs once, and more of them would learn the codes by heart.
        fit(model, *rare_codes(seen), steps=10)
        return accuracy(model, *rare_codes(unseen))

    assert np.mean([score(groups, seed) for seed in range(3)]) > 0.9
    assert np.mean([score({"diagnosis": {}}, seed) for seed in range(3)]) < 0.6
