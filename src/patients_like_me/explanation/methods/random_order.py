"""A random order: what every method must beat."""

from __future__ import annotations

import numpy as np

from patients_like_me.explanation.methods.question import Question
from patients_like_me.explanation.methods.registry import Method
from patients_like_me.explanation.target_edges import Floats


def random_order(question: Question) -> Floats:
    """Score at random; a target's order depends on the seed and the target alone."""
    from patients_like_me.model.randomness import mixed_seed

    parts = [
        np.random.default_rng(mixed_seed(question.seed, int(node))).random(question.edges.indptr[n + 1] - start)
        for n, (node, start) in enumerate(zip(question.edges.targets, question.edges.indptr[:-1], strict=True))
    ]
    return np.concatenate([np.zeros(0), *parts])


METHOD = Method("random", "at random", random_order)
