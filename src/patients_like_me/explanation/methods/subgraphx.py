"""SubgraphX: the small set of references that carries the prediction, by tree search with Shapley values."""

from __future__ import annotations

from patients_like_me.explanation.methods.question import Question
from patients_like_me.explanation.methods.registry import Method
from patients_like_me.explanation.target_edges import Floats


def subgraphx(question: Question) -> Floats:
    """Score by membership in the best set, then by a reference's own Shapley value."""
    from patients_like_me.explanation import coalitions

    return coalitions.subgraphx(question)


METHOD = Method("subgraphx", "tree search with Shapley values", subgraphx, slow=True)
