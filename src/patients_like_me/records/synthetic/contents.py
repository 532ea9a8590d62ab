"""What a visit holds: its diagnoses, procedures and drugs.

The rate of an item in a visit is the sum over its sources (reason, background syndromes, traits, bundles; for
drugs also the diagnoses just drawn), times exp(slope x acuity), times the calibrated scale of its kind. The item is
there with probability 1 - exp(-rate). With the probability ``persists`` the patient's own lasting random number
decides, otherwise a fresh one: so chronic conditions and home drugs come back visit after visit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patients_like_me.records.synthetic.courses import NONE, Courses, fits_sex
from patients_like_me.records.synthetic.settings import Draws
from patients_like_me.records.synthetic.syndromes import BUNDLES, Booleans, Floats, Integers, Items, Knowledge

AnyFloats = NDArray[np.floating[Any]]

BURDEN_BY_SEVERITY = 0.3
INCOMPLETE_SHARE_OF_DIAGNOSES = 0.3
LASTING_CHOICE = 0.85
MOST_DIAGNOSES = 39


@dataclass(frozen=True)
class Scales:
    """Multiply all rates of a kind; solved by ``calibration`` so that the marginals are the paper's."""

    diagnoses: float
    procedures: float
    drugs: float


@dataclass(frozen=True)
class Entries:
    """Hold the entries of one kind over all visits of a block, ordered by visit.

    ``item`` is the position in the list of items, ``text`` the position of the chosen code or drug name.
    """

    visit: Integers
    item: Integers
    text: Integers


@dataclass(frozen=True)
class Contents:
    """Hold the entries of all three kinds; the first diagnosis of a visit is its principal one."""

    diagnoses: Entries
    procedures: Entries
    drugs: Entries


def draw_contents(knowledge: Knowledge, courses: Courses, draws: Draws, scales: Scales) -> Contents:
    """Draw the diagnoses, procedures and drugs of every visit in a block."""
    sources = source_activity(knowledge, courses)
    burden = np.exp(BURDEN_BY_SEVERITY * courses.severity[courses.patient])
    burden = np.where(courses.incomplete, INCOMPLETE_SHARE_OF_DIAGNOSES * burden, burden)

    principal = _principal_conditions(knowledge, courses, draws)
    rates = scales.diagnoses * burden[:, None] * (sources @ knowledge.condition_rates)
    conditions = _present(knowledge.conditions, rates, courses, draws, "conditions")
    conditions[np.arange(courses.visits), principal] = True
    _apply_exclusions(knowledge, conditions, principal)

    rates = scales.procedures * (sources @ knowledge.procedure_rates)
    procedures = _present(knowledge.procedures, rates, courses, draws, "procedures")
    _ensure_one(procedures, rates * fits_sex(knowledge.procedures.sex, courses.female)[courses.patient], draws)
    procedures[courses.incomplete] = False

    rates = sources @ knowledge.drug_rates + conditions @ knowledge.treatment_rates
    drugs = _present(knowledge.drugs, scales.drugs * rates, courses, draws, "drugs")
    unmedicated = draws.stream("unmedicated").random(courses.visits) < 0.5
    drugs[courses.incomplete & unmedicated] = False

    return Contents(
        diagnoses=_ordered_diagnoses(knowledge, conditions, principal, courses, draws),
        procedures=_entries(knowledge.procedures, procedures, courses, draws, "procedure codes", lasting=0.0),
        drugs=_entries(knowledge.drugs, drugs, courses, draws, "drug names", lasting=LASTING_CHOICE),
    )


def source_activity(knowledge: Knowledge, courses: Courses) -> Floats:
    """Return visits x sources, 1 where a source acts in a visit (see ``Knowledge`` for the order of sources)."""
    rows = np.arange(courses.visits)
    syndromes = len(knowledge.syndromes.names)
    as_reason = np.zeros((courses.visits, syndromes))
    as_reason[rows, courses.reason] = 1.0
    in_background = np.zeros((courses.visits, syndromes))
    main, second = courses.main[courses.patient], courses.second[courses.patient]
    in_background[rows, main] = 1.0
    in_background[rows[second != NONE], second[second != NONE]] = 1.0
    in_background[rows, courses.reason] = 0.0
    active = {
        "every stay": np.ones(courses.visits),
        "surgery": courses.surgical,
        "critical illness": courses.critical,
        "last days": courses.died,
    }
    bundles = np.column_stack([active[name] for name in BUNDLES])
    return np.hstack([as_reason, in_background, courses.traits[courses.patient], bundles]).astype(float)


def _present(items: Items, rates: Floats, courses: Courses, draws: Draws, purpose: str) -> Booleans:
    """Decide for visits x items whether the item is there."""
    rates = rates * np.exp(np.outer(courses.acuity, items.severity))
    lasting = draws.stream(f"{purpose}, lasting").random((courses.patients, len(items.names)), dtype=np.float32)
    fresh = draws.stream(f"{purpose}, fresh").random((courses.visits, len(items.names)), dtype=np.float32)
    uniform = _lasting_or_fresh(lasting[courses.patient], fresh, items.persists)
    there: Booleans = uniform < -np.expm1(-rates)
    return there & fits_sex(items.sex, courses.female)[courses.patient]


def _lasting_or_fresh(lasting: AnyFloats, fresh: AnyFloats, share_lasting: Floats | float) -> Floats:
    """Take the lasting number with the given probability, else the fresh one, with one random number for both."""
    rest = np.maximum(1.0 - np.asarray(share_lasting, dtype=float), 1e-9)
    return np.where(fresh < share_lasting, lasting, (fresh - share_lasting) / rest)


def _principal_conditions(knowledge: Knowledge, courses: Courses, draws: Draws) -> Integers:
    """Draw the condition that leads to each visit out of the principal ones of its syndrome."""
    weights = knowledge.syndromes.principal[courses.reason]
    weights = weights * fits_sex(knowledge.conditions.sex, courses.female)[courses.patient]
    cumulative = np.cumsum(weights, axis=1)
    uniform = draws.stream("principal").random(courses.visits)
    return np.asarray((uniform[:, None] * cumulative[:, -1:] >= cumulative).sum(axis=1), dtype=np.int64)


def _apply_exclusions(knowledge: Knowledge, conditions: Booleans, principal: Integers) -> None:
    """Drop a condition next to one that already implies it, but never the principal one."""
    for condition, other in knowledge.exclusions:
        both = conditions[:, condition] & conditions[:, other]
        leads = principal == condition
        conditions[both & ~leads, condition] = False
        conditions[both & leads, other] = False


def _ensure_one(present: Booleans, rates: Floats, draws: Draws) -> None:
    """Give visits without any procedure one, in proportion to the rates."""
    empty = np.flatnonzero(~present.any(axis=1))
    uniform = draws.stream("at least one procedure").random(len(present))[empty]
    cumulative = np.cumsum(rates[empty], axis=1)
    chosen = (uniform[:, None] * cumulative[:, -1:] >= cumulative).sum(axis=1)
    present[empty, np.minimum(chosen, present.shape[1] - 1)] = True


def _entries(
    items: Items, present: Booleans, courses: Courses, draws: Draws, purpose: str, *, lasting: Floats | float
) -> Entries:
    """Choose a text (code or drug name) for every present item; ``lasting`` is how often a patient's own stays."""
    visit, item = np.nonzero(present)
    own = draws.stream(f"{purpose}, lasting").random((courses.patients, len(items.names)), dtype=np.float32)
    fresh = draws.stream(f"{purpose}, fresh").random(len(visit))
    share = lasting[item] if isinstance(lasting, np.ndarray) else lasting
    uniform = _lasting_or_fresh(own[courses.patient[visit], item].astype(float), fresh, share)
    choices = np.diff(items.first_text)[item]
    drawn = (uniform[:, None] >= items.cumulative[item]).sum(axis=1)
    by_stage = np.floor(courses.stage[visit] * choices).astype(np.int64)
    chosen = np.minimum(np.where(items.staged[item], by_stage, drawn), choices - 1)
    return Entries(visit=visit, item=item, text=items.first_text[item] + chosen)


def _ordered_diagnoses(
    knowledge: Knowledge, conditions: Booleans, principal: Integers, courses: Courses, draws: Draws
) -> Entries:
    """Order the diagnoses of a visit: the principal one, then by chance with the acute ones rather first."""
    items = knowledge.conditions
    entries = _entries(items, conditions, courses, draws, "diagnosis codes", lasting=items.persists)
    key = draws.stream("diagnosis order").random(len(entries.visit)) + 0.5 * items.persists[entries.item]
    key = np.where(entries.item == principal[entries.visit], -1.0, key)
    position = np.lexsort((key, entries.visit))
    visit = entries.visit[position]
    first = np.searchsorted(visit, np.arange(courses.visits))
    position = position[np.arange(len(visit)) - first[visit] < MOST_DIAGNOSES]
    return Entries(visit=entries.visit[position], item=entries.item[position], text=entries.text[position])
