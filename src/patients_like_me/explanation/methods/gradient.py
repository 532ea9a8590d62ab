"""The paper's importance: the derivative of the target logit with respect to the raw weight of an edge."""

from __future__ import annotations

from patients_like_me.explanation.methods.question import Question
from patients_like_me.explanation.methods.registry import Method, magnitude
from patients_like_me.explanation.target_edges import Floats


def gradient(question: Question) -> Floats:
    """Score by the derivative of the target logit with respect to the edge weight."""
    return question.known.importances(
        question.edges, question.choice, threads=question.threads, progress=question.progress
    )


def gradient_times_weight(question: Question) -> Floats:
    """Score by the derivative times the weight: the first-order estimate of the effect of removing the edge."""
    return gradient(question) * question.weights


METHOD = (
    Method("gradient", "derivative of the target logit by the edge weight (the paper)", gradient, signed=True),
    Method("gradient_magnitude", "the same without its sign", magnitude(gradient)),
    Method("gradient_times_weight", "derivative times weight", gradient_times_weight, signed=True),
)
