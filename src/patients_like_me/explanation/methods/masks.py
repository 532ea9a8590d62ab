"""GNNExplainer and PGExplainer: learned masks over the messages of a target's ego net."""

from __future__ import annotations

from patients_like_me.explanation.methods.question import Question
from patients_like_me.explanation.methods.registry import Method
from patients_like_me.explanation.target_edges import Floats


def gnn_explainer(question: Question) -> Floats:
    """Score by a mask that is learned for each target alone."""
    from patients_like_me.explanation import pyg_masks

    return pyg_masks.gnn_explainer(question)


def pg_explainer(question: Question) -> Floats:
    """Score by a mask from a network that is trained on a sample of the targets."""
    from patients_like_me.explanation import pyg_masks

    return pyg_masks.pg_explainer(question)


METHOD = (
    Method("gnn_explainer", "learned edge mask of one target (PyG)", gnn_explainer, slow=True),
    Method("pg_explainer", "edge mask from a network over many targets (PyG)", pg_explainer, slow=True),
)
