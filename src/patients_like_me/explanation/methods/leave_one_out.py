"""The measured effect of one reference: how far the target logit falls when its edge alone is removed."""

from __future__ import annotations

from patients_like_me.explanation.methods.question import Question
from patients_like_me.explanation.methods.registry import Method, magnitude
from patients_like_me.explanation.target_edges import Floats


def effect_of_removal(question: Question) -> Floats:
    """Score by the measured fall of the target logit when the edge alone is removed."""
    from patients_like_me.explanation.masking import leave_one_out

    return leave_one_out(
        question.known, question.edges, question.choice, threads=question.threads, progress=question.progress
    )


METHOD = (
    Method("leave_one_out", "measured fall of the logit without the edge", effect_of_removal, signed=True),
    Method("leave_one_out_magnitude", "the same without its sign", magnitude(effect_of_removal)),
)
