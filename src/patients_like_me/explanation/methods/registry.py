"""All methods by name.

A score orders the references of one target, the largest first; scores of different methods are on different scales.
Signed methods put the strongest supporter of the target logit first and the strongest opponent last; ``..._magnitude``
puts the strongest influence first, whichever way it points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from patients_like_me.errors import PlmError
from patients_like_me.explanation.batch_attribution import attribute
from patients_like_me.explanation.known_pass import Floats
from patients_like_me.explanation.masking import leave_one_out
from patients_like_me.explanation.methods.question import Question
from patients_like_me.model.randomness import mixed_seed


class Scorer(Protocol):
    """Anything that scores all edges of a question, in the order of ``question.edges``."""

    def __call__(self, question: Question) -> Floats:
        """Return one score per edge."""
        ...


@dataclass(frozen=True)
class Method:
    """A scorer with its name, what it means, and whether it needs seconds per target."""

    name: str
    meaning: str
    score: Scorer
    signed: bool = False
    slow: bool = False


def gradient(question: Question) -> Floats:
    """Score by the derivative of the target logit with respect to the raw edge weight: the paper's importance."""
    return attribute(
        question.known, question.edges, question.choice, threads=question.threads, progress=question.progress
    )


def gradient_times_weight(question: Question) -> Floats:
    """Score by the derivative times the weight: the first-order estimate of what removing the edge takes away."""
    return gradient(question) * question.known.weights[question.edges.entries]


def effect_of_removal(question: Question) -> Floats:
    """Score by the measured fall of the target logit when the edge alone is removed."""
    return leave_one_out(
        question.known, question.edges, question.choice, threads=question.threads, progress=question.progress
    )


def edge_weight(question: Question) -> Floats:
    """Score by the number of shared diagnoses."""
    return question.known.weights[question.edges.entries].copy()


def cosine(question: Question) -> Floats:
    """Score by the cosine of the two embeddings."""
    plain = question.embeddings.detach().double().cpu().numpy()
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    directions = np.divide(plain, lengths, out=np.zeros_like(plain), where=lengths > 0)
    nodes = question.edges.targets[question.edges.target_of_edge]
    return np.asarray(np.einsum("ef,ef->e", directions[nodes], directions[question.edges.neighbors]), dtype=np.float64)


def random_order(question: Question) -> Floats:
    """Score by chance; a target's order depends on the seed and the target alone."""
    parts = [
        np.random.default_rng(mixed_seed(question.seed, int(node))).random(question.edges.indptr[n + 1] - start)
        for n, (node, start) in enumerate(zip(question.edges.targets, question.edges.indptr[:-1], strict=True))
    ]
    return np.concatenate([np.zeros(0), *parts])


def _magnitude(score: Callable[[Question], Floats]) -> Scorer:
    def scored(question: Question) -> Floats:
        return np.abs(score(question))

    return scored


def _gnn_explainer(question: Question) -> Floats:
    from patients_like_me.explanation.methods.edge_masks import gnn_explainer

    return gnn_explainer(question)


def _pg_explainer(question: Question) -> Floats:
    from patients_like_me.explanation.methods.edge_masks import pg_explainer

    return pg_explainer(question)


def _subgraphx(question: Question) -> Floats:
    from patients_like_me.explanation.methods.subgraphx import subgraphx

    return subgraphx(question)


METHODS: Final[Mapping[str, Method]] = {
    method.name: method
    for method in (
        Method("gradient", "derivative of the target logit by the edge weight (the paper)", gradient, signed=True),
        Method("gradient_magnitude", "the same without its sign", _magnitude(gradient)),
        Method("gradient_times_weight", "derivative times weight", gradient_times_weight, signed=True),
        Method("leave_one_out", "measured fall of the logit without the edge", effect_of_removal, signed=True),
        Method("leave_one_out_magnitude", "the same without its sign", _magnitude(effect_of_removal)),
        Method("edge_weight", "number of shared diagnoses", edge_weight),
        Method("cosine", "cosine of the embeddings", cosine),
        Method("gnn_explainer", "learned edge mask of one target (PyG)", _gnn_explainer, slow=True),
        Method("pg_explainer", "edge mask from a network over many targets (PyG)", _pg_explainer, slow=True),
        Method("subgraphx", "tree search with Shapley values", _subgraphx, slow=True),
        Method("random", "by chance", random_order),
    )
}


def method_named(name: str) -> Method:
    """Return one method.

    >>> method_named("gradient").signed
    True
    """
    if name not in METHODS:
        raise PlmError(f"there is no method '{name}'", remedy=f"choose from {', '.join(METHODS)}")
    return METHODS[name]


def methods_named(names: Sequence[str]) -> list[Method]:
    """Return several methods, each once, in the order given; ``all`` and ``fast`` stand for groups.

    >>> [method.name for method in methods_named(["random", "edge_weight", "random"])]
    ['random', 'edge_weight']
    """
    wide: list[str] = []
    for name in names:
        if name in ("all", "fast"):
            wide += [method.name for method in METHODS.values() if name == "all" or not method.slow]
        else:
            wide.append(name)
    return [method_named(name) for name in dict.fromkeys(wide)]
