"""The experiments by name, in the order of the paper; each is a few lines of data.

What needs more than a grid and a shared table has a file of its own: ``tau``, ``visits``, ``edge_weights``,
``cohort_statistics``, ``interaction_target`` and ``paired``. Summaries are imported when an experiment ends: they load
slow libraries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Final

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.design import (
    DRUGS,
    PAPER_TASKS,
    READMISSION,
    Experiment,
    Findings,
    Variant,
)
from patients_like_me.evaluation.experiments.rows import ALL

if TYPE_CHECKING:
    from patients_like_me.evaluation.experiments.results import ExperimentResults

#: The five strategies in the paper's order and by its names.
STRATEGY_ROWS: Final = (
    Variant("VEM", {"strategy": "vem"}),
    Variant("Alternating", {"strategy": "alternating"}),
    Variant("E2E", {"strategy": "end_to_end"}),
    Variant("2-stage", {"strategy": "two_stage"}),
    Variant("LM-only", {"strategy": "lm_only"}),
)
VEM_ROW: Final = STRATEGY_ROWS[0]
LM_ONLY_ROW: Final = STRATEGY_ROWS[-1]
#: The same by the names of their settings; those that are not in question have one seed.
RECORDS_ROWS: Final = tuple(
    Variant(name, {"strategy": name}, seeds=seeds)
    for name, seeds in (("vem", 3), ("lm_only", 3), ("two_stage", 3), ("alternating", 1), ("end_to_end", 1))
)
_PLACES: Final = {"bag": {"places": True}}
#: The method next to its controls, its parts and the plain models, which get the hospital too.
REFERENCES_ROWS: Final = (
    Variant("references", system="references"),
    Variant("references on linear", {"own_path": ["linear"]}, "references"),
    Variant("references on boosting", {"own_path": ["boosting"]}, "references"),
    Variant("frozen language model", {"language_model": "frozen"}, "references"),
    Variant("references with network", {"language_model": "frozen", "network": True}, "references"),
    Variant("trained language model", {"language_model": "trained"}, "references"),
    Variant("trained outside folds", {"language_model": "trained", "in_folds": "frozen"}, "references"),
    Variant("without references", {"control": "no_references"}, "references"),
    Variant("references at random", {"control": "rewired"}, "references"),
    Variant("outcomes shuffled", {"control": "shuffled"}, "references"),
    Variant("without cross-fitting", {"control": "no_cross_fitting"}, "references"),
    Variant("linear", system="linear"),
    Variant("logistic", _PLACES, "logistic"),
    Variant("boosting", _PLACES, "boosting"),
    Variant("repeat", system="repeat"),
    Variant("neighbors", system="neighbors"),
    Variant("lm_only", {"strategy": "lm_only"}),
    Variant("two_stage", {"strategy": "two_stage"}),
    Variant("vem (paper)", {"strategy": "vem"}, preset="paper"),
    Variant("vem (clinical)", {"strategy": "vem"}, preset="clinical"),
)
_LIKE_PEOPLE: Final = {"same_sex": True, "max_age_difference": 10}
#: Both ways of using references, from everybody and from people of the same sex and about the same age.
PEOPLE_ROWS: Final = (
    Variant("references", system="references"),
    Variant("references (same sex and age)", _LIKE_PEOPLE, "references"),
    Variant("vem", {"strategy": "vem"}),
    Variant("vem (same sex and age)", {"strategy": "vem", "graph": _LIKE_PEOPLE}),
)
#: Rows with a language model, or slow ones, which the quick form leaves out.
_NOT_QUICK: Final = (
    "frozen language model", "references with network", "trained language model", "trained outside folds", "neighbors",
    "lm_only", "two_stage", "vem (paper)", "vem (clinical)",
)  # fmt: skip
#: The systems whose loss gives way to that of interactions above a target, by their titles.
SYSTEMS_WITH_TARGET: Final = {"gamenet": "GAMENet", "safedrug": "SafeDrug", "micron": "MICRON", "molerec": "MoleRec"}
_SAMPLES: Final = {"1": "Single sample", "5": "Five samples", "exact": "Exact expectation"}


def tau_row(value: str) -> Variant:
    """Make the row of one tau.

    >>> tau_row("8").name, tau_row("8").changes
    ('tau 8', {'strategy': 'vem', 'graph': {'tau': 8}})
    """
    if not value.strip().isdigit():
        raise PlmError(f"tau={value!r} is not possible", remedy="give whole numbers, such as --values 4 --values 8")
    return Variant(f"tau {int(value)}", {"strategy": "vem", "graph": {"tau": int(value)}})


def samples_row(value: str) -> Variant:
    """Make the row of a number of samples, or of the closed form.

    >>> samples_row("5").name, samples_row("5").changes
    ('Five samples', {'strategy': 'vem', 'mc_samples': 5})
    """
    value = value.strip()
    if value != "exact" and not value.isdigit():
        raise PlmError(f"mc_samples={value!r} is not possible", remedy="give whole numbers, or exact")
    samples = value if value == "exact" else int(value)
    return Variant(_SAMPLES.get(value, f"{value} samples"), {"strategy": "vem", "mc_samples": samples})


def target_rows(value: str) -> tuple[Variant, ...]:
    """Make the rows of one target for interactions: one for each system that has such a target.

    >>> [(row.name, row.changes) for row in target_rows("0.05")][:1]
    [('GAMENet 0.05', {'target_rate': 0.05})]
    """
    try:
        target = float(value)
    except ValueError:
        target = math.nan
    if not 0 < target <= 1:
        raise PlmError(
            f"target={value!r} is not possible", remedy="give shares above 0, such as --values 1 --values 0.05"
        )
    return tuple(
        Variant(f"{title} {target:g}", {"target_rate": target}, system) for system, title in SYSTEMS_WITH_TARGET.items()
    )


def _from(module: str, name: str = "summarize") -> Callable[[ExperimentResults], Findings]:
    """Return a summary that is imported when it is called."""

    def summarize(results: ExperimentResults) -> Findings:
        found: Findings = getattr(import_module(f"patients_like_me.evaluation.experiments.{module}"), name)(results)
        missing = tuple(f"Not on this machine: {each}; {way}." for each, way in results.plan.skipped.items())
        left_out = tuple(f"No row for {each}: {why}." for each, why in results.plan.unavailable.items())
        return replace(found, notes=(*found.notes, *missing, *left_out))

    return summarize


_ALL_EXPERIMENTS: Final = (
    Experiment(
        name="cohorts",
        question="how many patients, visits and codes are there?",
        paper="the table of cohort statistics (MIMIC-III, MIMIC-IV)",
        summarize=_from("cohort_statistics"),
        tasks=(READMISSION,),
        every_cohort=True,
    ),
    Experiment(
        name="main",
        question="how well are readmission, length of stay and drugs predicted, on every cohort?",
        paper="the main table (three tasks, MIMIC-III and MIMIC-IV, 10 seeds)",
        summarize=_from("summaries", "main_tables"),
        tasks=PAPER_TASKS,
        grid=STRATEGY_ROWS,
        quick_grid=(VEM_ROW, LM_ONLY_ROW),
        paper_backbones=("bioclinical-modernbert", "meerkat-8b"),
        every_cohort=True,
        takes_systems=True,
    ),
    Experiment(
        name="tau",
        question="how many diagnoses should two patients share to be linked?",
        paper="the sensitivity figure, part a (readmission)",
        summarize=_from("tau"),
        tasks=(READMISSION,),
        grid=tuple(tau_row(str(tau)) for tau in (4, 6, 8, 10, 12)),
        quick_grid=tuple(tau_row(str(tau)) for tau in (2, 5, 8, 11)),
        variants_of=lambda word: (tau_row(word),),
    ),
    Experiment(
        name="visits",
        question="does the method need long histories?",
        paper="the sensitivity figure, part b (drug recommendation, MIMIC-IV)",
        summarize=_from("visits"),
        tasks=(DRUGS,),
        grid=(VEM_ROW,),
        quick_seeds=1,
    ),
    Experiment(
        name="ablation",
        question="which training strategy is best, everything else being equal?",
        paper="the ablation table (five strategies, two backbones, three tasks, MIMIC-IV)",
        summarize=_from("summaries", "ablation"),
        tasks=PAPER_TASKS,
        grid=STRATEGY_ROWS,
        paper_backbones=("bioclinical-modernbert", "meerkat-8b"),
    ),
    Experiment(
        name="edge-weights",
        question="are the training and the test graph alike?",
        paper="the figure of edge weights (MIMIC-III, 6,000 and 2,000 patients: --sample 6000,2000)",
        summarize=_from("edge_weights"),
        tasks=(READMISSION,),
        every_cohort=True,
    ),
    Experiment(
        name="mc-samples",
        question="do more samples of the E-step's coupling help?",
        paper="the table of Monte Carlo samples (readmission, MIMIC-IV, BioBERT)",
        summarize=_from("summaries", "mc_samples"),
        tasks=(READMISSION,),
        grid=(
            *(samples_row(value) for value in ("1", "5", "exact")),
            Variant("Without coupling", {"strategy": "vem", "coupling": 0.0}),
        ),
        # Without the coupling the number of samples would change nothing.
        base={"coupling": 1.0},
        paper_backbones=("biobert-large",),
        variants_of=lambda word: (samples_row(word),),
    ),
    Experiment(
        name="backbones",
        question="does the patient graph help every language model?",
        paper="the table of backbones (two encoders, two decoders, three tasks, MIMIC-IV)",
        summarize=_from("summaries", "backbones"),
        tasks=PAPER_TASKS,
        grid=(VEM_ROW, LM_ONLY_ROW),
        paper_backbones=("bioclinical-modernbert", "meerkat-8b", "biobert-large", "biomistral-7b"),
        backbones=("minilm-2", "minilm", "smollm2-135m"),
    ),
    Experiment(
        name="efficiency",
        question="what do the strategies cost in time and memory?",
        paper="the efficiency table (drug recommendation, MIMIC-IV, Meerkat 8B)",
        summarize=_from("summaries", "efficiency"),
        tasks=(DRUGS,),
        grid=STRATEGY_ROWS,
        seeds=1,
        quick_seeds=1,
        paper_backbones=("meerkat-8b",),
        alone=True,
        all_epochs=True,
    ),
    Experiment(
        name="records",
        question="what do strategies and other systems reach on these records, with intervals and paired differences?",
        paper="",
        summarize=_from("paired"),
        tasks=PAPER_TASKS,
        grid=RECORDS_ROWS,
        quick_grid=RECORDS_ROWS[:2],
        every_cohort=True,
        takes_systems=True,
        in_all=False,
    ),
    Experiment(
        name="references",
        question="what do the outcomes of similar patients add to the strongest plain models, and why?",
        paper="",
        summarize=_from("paired"),
        tasks=PAPER_TASKS,
        grid=REFERENCES_ROWS,
        quick_grid=tuple(row for row in REFERENCES_ROWS if row.name not in _NOT_QUICK),
        seeds=1,
        quick_seeds=1,
        every_cohort=True,
        takes_systems=True,
        in_all=False,
    ),
    Experiment(
        name="sex-and-age",
        question="what does it cost or give to take references of the same sex and an age within ten years only?",
        paper="",
        summarize=_from("paired"),
        tasks=PAPER_TASKS,
        grid=PEOPLE_ROWS,
        quick_grid=PEOPLE_ROWS[:2],
        seeds=1,
        quick_seeds=1,
        every_cohort=True,
        in_all=False,
    ),
    Experiment(
        name="interaction-target",
        question="how often do recommended drugs interact under a lower target, and what does that cost?",
        paper="",
        summarize=_from("interaction_target"),
        tasks=(DRUGS,),
        # Under a target of 1 the interactions are never in the loss.
        grid=tuple(row for target in ("1", "0.2", "0.1", "0.05", "0.02") for row in target_rows(target)),
        quick_grid=tuple(row for target in ("1", "0.02") for row in target_rows(target)),
        variants_of=target_rows,
        every_cohort=True,
        in_all=False,
    ),
    Experiment(
        name="learning-curve",
        question="how much do references add with few training patients, and how much with many?",
        paper="",
        summarize=_from("learning_curve"),
        tasks=(DRUGS,),
        variants_of=lambda name: (Variant(name, system="references"),),
        fits="references",
        every_cohort=True,
        in_all=False,
    ),
    Experiment(
        name="growing-bank",
        question="what is a bank worth that grows while the model is not trained again?",
        paper="",
        summarize=_from("growing_bank"),
        tasks=(DRUGS,),
        variants_of=lambda name: (Variant(name, system="references"),),
        fits="references",
        every_cohort=True,
        in_all=False,
    ),
)
EXPERIMENTS: Final[dict[str, Experiment]] = {experiment.name: experiment for experiment in _ALL_EXPERIMENTS}


def add_experiment(experiment: Experiment) -> None:
    """Add an experiment that a later room declares; adding it again changes nothing."""
    EXPERIMENTS.setdefault(experiment.name, experiment)


def find_experiments(name: str) -> tuple[Experiment, ...]:
    """Return the experiment of a name, or all of the paper's.

    >>> [experiment.name for experiment in find_experiments("tau")]
    ['tau']
    """
    if name == ALL:
        return tuple(experiment for experiment in EXPERIMENTS.values() if experiment.in_all)
    if name not in EXPERIMENTS:
        raise PlmError(f"there is no experiment '{name}'", remedy=f"choose one of {', '.join([*EXPERIMENTS, ALL])}")
    return (EXPERIMENTS[name],)
