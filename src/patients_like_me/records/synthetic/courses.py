"""The course of every patient: who they are, what ails them, how often they come and how ill they are each time.

Severity is a hidden standard normal number per patient. It raises the number of visits, the chance of an early
return, the stage of the disease and the acuity of each visit; none of it is written to the tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from patients_like_me.records.synthetic.settings import Draws, SyntheticHospital
from patients_like_me.records.synthetic.syndromes import Booleans, Floats, Integers, Knowledge

YOUNGEST, OLDEST = 18.0, 91.0
MOST_VISITS = 60
NONE = -1

# Log-odds of an early return: the level is set so that about 13 % of visits with a successor have it within
# 15 days of admission.
EARLY_LEVEL = -2.95
EARLY_BY_SYNDROME = 2.0
EARLY_BY_SEVERITY = 0.8
EARLY_BY_STAGE = 1.0
EARLY_AFTER_EARLY = 0.9

VISITS_BY_SEVERITY = 0.5
SECOND_SYNDROME_SHARE = 0.3
STAGE_NOISE = 0.08
ACUITY_BY_SEVERITY = 0.7
ACUITY_BY_STAGE = 0.6
ACUITY_OF_EARLY_RETURN = 0.3
ACUITY_NOISE = 0.5
DEATH_LEVEL = -4.2
DEATH_BY_ACUITY = 1.0
DEATH_IN_CRITICAL_ILLNESS = 1.6


@dataclass(frozen=True)
class Courses:
    """Hold a block of patients and their visits; visits are rows in patient order, then time order.

    Per patient: ``female``, ``age`` (at the first visit), ``severity``, ``main`` and ``second`` syndrome
    (-1 where there is none), ``traits`` (patients x traits). Per visit: ``patient`` (row), ``order`` (from 0),
    ``reason`` (the syndrome that leads to it), ``stage`` (0 to 1), ``acuity``, ``early`` (came back soon after
    the visit before), ``surgical``, ``critical``, ``incomplete``, ``died``.
    """

    first_patient: int
    female: Booleans
    age: Floats
    severity: Floats
    main: Integers
    second: Integers
    traits: Booleans
    patient: Integers
    order: Integers
    reason: Integers
    stage: Floats
    acuity: Floats
    early: Booleans
    surgical: Booleans
    critical: Booleans
    incomplete: Booleans
    died: Booleans

    @property
    def patients(self) -> int:
        """Count the patients."""
        return len(self.age)

    @property
    def visits(self) -> int:
        """Count the visits."""
        return len(self.patient)

    @property
    def last_visit(self) -> Integers:
        """Return the row of each patient's last visit."""
        return np.flatnonzero(np.append(self.patient[1:] != self.patient[:-1], True))


def draw_courses(
    knowledge: Knowledge, settings: SyntheticHospital, draws: Draws, *, first_patient: int, patients: int
) -> Courses:
    """Draw a block of patients and the courses of their visits."""
    syndromes = knowledge.syndromes
    main = _pick(np.tile(syndromes["share"], (patients, 1)), draws.stream("main").random(patients))
    female = draws.stream("sex").random(patients) < syndromes["female"][main]
    age = syndromes["age_mean"][main] + syndromes["age_spread"][main] * draws.stream("age").standard_normal(patients)
    age = np.clip(age, YOUNGEST, OLDEST)
    severity = draws.stream("severity").standard_normal(patients)
    second = _second_syndromes(knowledge, draws, main, female, severity)
    traits = _draw_traits(knowledge, draws, female, age, severity)

    counts = _visit_counts(knowledge, settings, draws, main, severity)
    patient = np.repeat(np.arange(patients), counts)
    order = np.arange(len(patient)) - np.repeat(np.cumsum(counts) - counts, counts)
    reason = _reasons(knowledge, draws, patient, order, main=main, second=second, female=female, age=age)
    stage = _stages(knowledge, draws, patient, order, main=main, severity=severity, age=age)
    early = _early_returns(knowledge, draws, patient, order, reason=reason, stage=stage, severity=severity)
    acuity = (
        ACUITY_BY_SEVERITY * severity[patient]
        + ACUITY_BY_STAGE * (stage - 0.5)
        + ACUITY_OF_EARLY_RETURN * early
        + ACUITY_NOISE * draws.stream("acuity").standard_normal(len(patient))
    )
    last = np.append(patient[1:] != patient[:-1], True)
    critical = _chance(draws, "critical", _log_odds(syndromes["critical"][reason]) + 0.9 * acuity)
    surgical = draws.stream("surgery").random(len(patient)) < syndromes["surgery"][reason]
    death_log_odds = (
        DEATH_LEVEL + syndromes["death"][reason] + DEATH_BY_ACUITY * acuity + DEATH_IN_CRITICAL_ILLNESS * critical
    )
    died = _chance(draws, "death", death_log_odds) & last
    incomplete = draws.stream("incomplete").random(len(patient)) < settings.incomplete_visits
    return Courses(
        first_patient=first_patient,
        female=female,
        age=age,
        severity=severity,
        main=main,
        second=second,
        traits=traits,
        patient=patient,
        order=order,
        reason=reason,
        stage=stage,
        acuity=acuity,
        early=early,
        surgical=surgical,
        critical=critical,
        incomplete=incomplete & ~died & ~critical & ~surgical,
        died=died,
    )


def _second_syndromes(
    knowledge: Knowledge, draws: Draws, main: Integers, female: Booleans, severity: Floats
) -> Integers:
    """Give some patients a second syndrome out of the first one's companions, the severe ones more often."""
    weights = knowledge.syndromes.companions[main] * _allowed_for(knowledge, female)
    chosen = _pick(weights, draws.stream("second").random(len(main)))
    has_second = _chance(draws, "has second", _log_odds(SECOND_SYNDROME_SHARE) + 0.4 * severity)
    return np.where(has_second & (weights.sum(axis=1) > 0), chosen, NONE)


def _draw_traits(knowledge: Knowledge, draws: Draws, female: Booleans, age: Floats, severity: Floats) -> Booleans:
    traits = knowledge.traits
    log_odds = (
        traits.log_odds_at_65
        + np.outer((age - 65.0) / 10.0, traits.per_decade)
        + np.outer(~female, traits.male)
        + np.outer(severity, traits.severity)
    )
    present = draws.stream("traits").random(log_odds.shape) < _logistic(log_odds)
    return present & fits_sex(traits.sex, female)


def _visit_counts(
    knowledge: Knowledge, settings: SyntheticHospital, draws: Draws, main: Integers, severity: Floats
) -> Integers:
    """Draw how often each patient comes: one visit, and a geometric number of further ones.

    The mean of the further visits is proportional to the syndrome's ``returns`` and to exp(severity / 2); the
    two factors are scaled to mean 1 over the hospital, so that the mean over all patients is the one asked for.
    """
    syndromes = knowledge.syndromes
    usual = np.average(syndromes["returns"], weights=syndromes["share"])
    spread = np.exp(VISITS_BY_SEVERITY * severity - VISITS_BY_SEVERITY**2 / 2)
    mean = (settings.visits_per_patient - 1.0) * syndromes["returns"][main] / usual * spread
    uniform = draws.stream("visits").random(len(main))
    with np.errstate(divide="ignore"):
        further = np.floor(np.log1p(-uniform) / np.log(mean / (1.0 + mean)))
    return 1 + np.minimum(further, MOST_VISITS - 1).astype(np.int64)


def _reasons(
    knowledge: Knowledge,
    draws: Draws,
    patient: Integers,
    order: Integers,
    *,
    main: Integers,
    second: Integers,
    female: Booleans,
    age: Floats,
) -> Integers:
    """Choose what each visit is for: the main syndrome first, later that again, a companion or a chance event."""
    syndromes = knowledge.syndromes
    visits = len(patient)
    allowed = _allowed_for(knowledge, female)
    distance = (age[:, None] - syndromes["age_mean"]) / (1.5 * syndromes["age_spread"])
    incidental = syndromes["incidental"] * allowed * np.exp(-0.5 * distance**2)
    companions = syndromes.companions[main] * allowed
    companions = np.where(companions.sum(axis=1, keepdims=True) > 0, companions, incidental)
    which = draws.stream("which reason").random(visits)
    chance_event = _pick(incidental[patient], which)
    companion = _pick(companions[patient], which)
    kind = draws.stream("kind of reason").random(visits)
    other = np.where(kind < 0.55, np.where(second[patient] != NONE, second[patient], companion), companion)
    other = np.where(kind < 0.8, other, chance_event)
    again = draws.stream("again").random(visits) < syndromes["recurs"][main[patient]]
    return np.where((order == 0) | again, main[patient], other)


def _stages(
    knowledge: Knowledge,
    draws: Draws,
    patient: Integers,
    order: Integers,
    *,
    main: Integers,
    severity: Floats,
    age: Floats,
) -> Floats:
    """Let the disease advance from visit to visit, faster in severe patients; a stage never goes back."""
    start = 0.6 * _logistic(0.9 * severity + 0.03 * (age - 65.0))
    step = knowledge.syndromes["progress"][main] * np.exp(0.3 * severity)
    noise = STAGE_NOISE * draws.stream("stage").standard_normal(len(main))
    return np.clip((start + noise)[patient] + step[patient] * order, 0.0, 1.0)


def _early_returns(
    knowledge: Knowledge,
    draws: Draws,
    patient: Integers,
    order: Integers,
    *,
    reason: Integers,
    stage: Floats,
    severity: Floats,
) -> Booleans:
    """Tell which visits follow soon on the one before; an early return makes the next one likelier."""
    uniform = draws.stream("early").random(len(patient))
    early = np.zeros(len(patient), dtype=bool)
    rows = np.flatnonzero(order == 1)
    while len(rows):
        before = rows - 1
        log_odds = (
            EARLY_LEVEL
            + EARLY_BY_SYNDROME * knowledge.syndromes["early"][reason[before]]
            + EARLY_BY_SEVERITY * severity[patient[rows]]
            + EARLY_BY_STAGE * (stage[before] - 0.5)
            + EARLY_AFTER_EARLY * early[before]
        )
        early[rows] = uniform[rows] < _logistic(log_odds)
        following = rows + 1
        following = following[following < len(patient)]
        rows = following[order[following] > 1]
    return early


def fits_sex(wanted: Integers, female: Booleans) -> Booleans:
    """Tell for people (rows) and things (columns) whether the thing occurs in the person's sex."""
    fits: Booleans = (wanted == 0) | np.where(female[:, None], wanted == 1, wanted == 2)
    return fits


def _allowed_for(knowledge: Knowledge, female: Booleans) -> Booleans:
    only_women = knowledge.syndromes["female"] >= 1.0
    allowed: Booleans = female[:, None] | ~only_women
    return allowed


def _pick(weights: Floats, uniform: Floats) -> Integers:
    """Draw one column per row in proportion to the weights; rows without weight give column 0."""
    cumulative = np.cumsum(weights, axis=1)
    chosen = (uniform[:, None] * cumulative[:, -1:] >= cumulative).sum(axis=1)
    return np.where(cumulative[:, -1] > 0, np.minimum(chosen, weights.shape[1] - 1), 0)


def _chance(draws: Draws, purpose: str, log_odds: Floats) -> Booleans:
    return draws.stream(purpose).random(len(log_odds)) < _logistic(log_odds)


def _log_odds(share: Floats | float) -> Floats:
    bounded = np.clip(np.asarray(share, dtype=float), 1e-6, 1 - 1e-6)
    return np.asarray(np.log(bounded / (1 - bounded)), dtype=float)


def _logistic(log_odds: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-log_odds))
