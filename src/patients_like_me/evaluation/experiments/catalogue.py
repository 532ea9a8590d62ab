"""The experiments by name, in the order of the paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.ablation import ABLATION
from patients_like_me.evaluation.experiments.backbones import BACKBONES
from patients_like_me.evaluation.experiments.design import Experiment
from patients_like_me.evaluation.experiments.edge_weights import EDGE_WEIGHTS
from patients_like_me.evaluation.experiments.efficiency import EFFICIENCY
from patients_like_me.evaluation.experiments.main_table import MAIN
from patients_like_me.evaluation.experiments.mc_samples import MC_SAMPLES
from patients_like_me.evaluation.experiments.tau import TAU
from patients_like_me.evaluation.experiments.visits import VISITS

EXPERIMENTS: Final[Mapping[str, Experiment]] = {
    experiment.name: experiment
    for experiment in (MAIN, TAU, VISITS, ABLATION, EDGE_WEIGHTS, MC_SAMPLES, BACKBONES, EFFICIENCY)
}
#: The word for all of them, one after another, in one folder.
ALL: Final = "all"


def find_experiments(name: str) -> tuple[Experiment, ...]:
    """Return the experiment of a name, or all of them.

    >>> [experiment.name for experiment in find_experiments("tau")]
    ['tau']
    """
    if name == ALL:
        return tuple(EXPERIMENTS.values())
    if name not in EXPERIMENTS:
        raise PlmError(f"there is no experiment '{name}'", remedy=f"choose one of {', '.join([*EXPERIMENTS, ALL])}")
    return (EXPERIMENTS[name],)
