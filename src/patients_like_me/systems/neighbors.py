"""``neighbors``: the vote of the bank, that is, of the training instances that share diagnoses with the evaluated one.

With w the number of shared diagnoses, y a neighbour's label and r the label's rate in the training split,

    p_i = (sum_j w_ij y_j + prior * r) / (sum_j w_ij + prior)

so that an instance without neighbours gets the rate. The neighbours are those of the patient graph with references
``bank``: training instances only, never one of the same patient.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from patients_like_me.graph.build import build_graph
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.systems.problem import Candidate, Fitted, Problem, choose
from patients_like_me.systems.settings import NeighborsSettings


def fit_neighbors(problem: Problem, settings: NeighborsSettings) -> Fitted:
    """Let the neighbours vote under every setting of the grid and keep the best on validation."""
    fitted = choose(problem, _votes(problem, settings))
    alone = fitted.best.choice["instances_without_neighbors"]
    note = (
        f"{alone:,} of {len(problem.evaluated):,} evaluated instances have no neighbour in the bank and get the rates"
    )
    return Fitted(fitted.best, fitted.tried, [*fitted.notes, note])


def _votes(problem: Problem, settings: NeighborsSettings) -> Iterator[Candidate]:
    """Yield the votes of all settings, the strictest graph and the strongest prior first."""
    for tau in sorted(settings.tau, reverse=True):
        for most in settings.max_neighbors:
            graph = build_graph(
                problem.instances.diagnosis_sets, GraphSettings(tau=tau, max_neighbors=most, references="bank")
            )
            weights = graph.to_scipy()[problem.evaluated][:, problem.train].astype(np.float64)
            votes, heard = weights @ problem.targets, np.asarray(weights.sum(axis=1)).reshape(-1, 1)
            alone = int((heard == 0).sum())
            for prior in settings.prior:
                chances = (votes + prior * problem.rates) / (heard + prior)
                choice = {"tau": tau, "max_neighbors": most, "prior": prior, "instances_without_neighbors": alone}
                yield Candidate(choice, chances)
