"""Methods that learn or search on the ego net of each target; the libraries they need are imported when one is used.

GNNExplainer and PGExplainer learn a mask over the messages; SubgraphX searches for the small set of references that
carries the prediction, with Shapley values.
"""

from __future__ import annotations

from importlib import import_module

from patients_like_me.explanation.methods.question import Question
from patients_like_me.explanation.methods.registry import Method, Scorer
from patients_like_me.explanation.target_edges import Floats


def _from(module: str, function: str) -> Scorer:
    """Return a scorer of another file of this room, which is imported at its first use."""

    def score(question: Question) -> Floats:
        found: Floats = getattr(import_module(f"patients_like_me.explanation.{module}"), function)(question)
        return found

    return score


METHOD = (
    Method("gnn_explainer", "learned edge mask of one target (PyG)", _from("pyg_masks", "gnn_explainer"), slow=True),
    Method(
        "pg_explainer",
        "edge mask from a network over many targets (PyG)",
        _from("pyg_masks", "pg_explainer"),
        slow=True,
    ),
    Method("subgraphx", "tree search with Shapley values", _from("coalitions", "subgraphx"), slow=True),
)
