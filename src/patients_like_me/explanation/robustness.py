"""Two checks that need no removal: do importances depend on what was learned, and do they return with another seed?

* **Weight randomisation**: the same question to a network with random weights. An importance that stays the same says
  nothing about the training.
* **Stability**: the top references of the same targets in runs that differ only in their seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

from torch import nn

from patients_like_me.errors import PlmError
from patients_like_me.explanation.agreement import Agreement, agreements
from patients_like_me.explanation.methods import Question
from patients_like_me.explanation.methods.gradient import gradient
from patients_like_me.explanation.target_edges import Floats
from patients_like_me.model.gcn import GraphConvolution, GraphNetwork
from patients_like_me.model.randomness import seeded

Randomised = Literal["classifier", "last_layer", "all"]
PARTS: tuple[Randomised, ...] = ("classifier", "last_layer", "all")


def randomised(network: GraphNetwork, part: Randomised, *, seed: int = 0) -> GraphNetwork:
    """Return a copy of a network with first weights in the classifier, also in the last layer, or everywhere."""
    first = network.convolutions[0]
    assert isinstance(first, GraphConvolution)
    inputs, outputs = first.weight.shape[0], network.classifier.out_features
    with seeded(seed, 5):
        fresh = GraphNetwork(inputs, outputs, network.settings).to(network.classifier.weight).eval()
    kept: list[tuple[nn.Module, nn.Module]] = []
    pairs = list(zip(network.convolutions, fresh.convolutions, strict=True))
    if part != "all":
        kept = pairs if part == "classifier" else pairs[:-1]
    for old, new in kept:
        new.load_state_dict(old.state_dict())
    return fresh


def randomisation_check(question: Question, importances: Floats, *, seed: int = 0) -> list[Agreement]:
    """Compare the importances with those of networks whose weights were randomised; agreement should be low.

    Only the package's own network is checked: which parts of another one can be randomised is not known.
    """
    if type(question.network) is not GraphNetwork:
        return []
    scores = {"trained": importances}
    for part in PARTS:
        scores[f"random weights: {part.replace('_', ' ')}"] = gradient(
            question.with_network(randomised(question.network, part, seed=seed))
        )
    return agreements(question.edges, scores, seed=seed, against="trained")


def stability(questions: Sequence[Question], names: Sequence[str], *, seed: int = 0) -> list[Agreement]:
    """Compare the importances of the same targets between runs, every two of them."""
    first = questions[0]
    for question, name in zip(questions[1:], names[1:], strict=True):
        same = question.graph.instance_ids == first.graph.instance_ids and (
            (question.graph.indptr == first.graph.indptr).all()
            and len(question.graph.neighbors) == len(first.graph.neighbors)
            and (question.graph.neighbors == first.graph.neighbors).all()
        )
        if not same:
            raise PlmError(
                f"the run '{name}' has other instances or another graph than the first",
                remedy="give runs of the same cohort and task whose settings differ only in the seed",
            )
    found = {name: gradient(question) for name, question in zip(names, questions, strict=True)}
    return [
        agreements(first.edges, {one: found[one], other: found[other]}, seed=seed)[0]
        for one, other in combinations(names, 2)
    ]
