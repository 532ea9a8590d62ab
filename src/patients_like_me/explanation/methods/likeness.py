"""Orders that do not look at the network: how alike two patients are, by diagnoses or by embedding."""

from __future__ import annotations

import numpy as np

from patients_like_me.explanation.methods.question import Question
from patients_like_me.explanation.methods.registry import Method
from patients_like_me.explanation.target_edges import Floats


def edge_weight(question: Question) -> Floats:
    """Score by the number of shared diagnoses."""
    return question.weights


def cosine(question: Question) -> Floats:
    """Score by the cosine of the two embeddings."""
    plain = question.embeddings.detach().double().cpu().numpy()
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    directions = np.divide(plain, lengths, out=np.zeros_like(plain), where=lengths > 0)
    nodes = question.edges.targets[question.edges.target_of_edge]
    return np.asarray(np.einsum("ef,ef->e", directions[nodes], directions[question.edges.neighbors]), dtype=np.float64)


METHOD = (
    Method("edge_weight", "number of shared diagnoses", edge_weight),
    Method("cosine", "cosine of the embeddings", cosine),
)
