"""Support: how many comparable patients a prediction has, how close they are, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, Literal

import numpy as np

from patients_like_me.explanation.decision import Decision
from patients_like_me.explanation.references import Reference
from patients_like_me.explanation.scene import Scene
from patients_like_me.plain_text import counted, is_small, percent, shown_share, tells_a_small_count

Word = Literal["well supported", "weakly supported", "no comparable patients"]

#: "Well supported" needs all of these.
FEWEST_PATIENTS = 5
SMALLEST_OVERLAP = 0.3
SMALLEST_CLOSENESS = 0.75
SMALLEST_AGREEMENT = 0.7
#: How two patients are alike who have no code in common.
ALIKE_WITHOUT_CODES: Final = "alike only in facts such as age, sex or hospital"


@dataclass(frozen=True)
class Support:
    """How well references support a prediction.

    References are instances; ``patients`` counts the people behind them, for one patient may appear several times.
    ``overlap`` is the median share of the target's own diagnoses that a reference has too, None where it has none;
    ``closeness`` the share of all candidates whose embedding is farther from the target's than that of the median
    reference; ``agreement`` the share of references whose known outcome agrees with what was decided, None where
    outcomes are not known. ``had`` counts the references with the event that the shown probability is about, and
    ``bits`` tells it of each (of a set, which is not one event, whether the reference agrees with it); None where
    outcomes are not known. ``without_codes`` counts the references that share no diagnosis, procedure or drug with the
    patient: they are not similar patients.
    """

    word: Word
    references: int
    patients: int
    neighbors: int
    overlap: float | None
    cosine: float | None
    closeness: float | None
    agreement: float | None
    reasons: tuple[str, ...]
    outcomes: str = ""
    training_rate: str = ""
    had: int | None = None
    bits: tuple[bool | None, ...] = ()
    without_codes: int = 0

    @property
    def is_without_codes(self) -> bool:
        """Tell whether no reference has a code in common with the patient, so that none is a similar patient."""
        return 0 < self.references == self.without_codes

    @property
    def is_missing(self) -> bool:
        """Tell whether there is nobody to compare with."""
        return self.word == "no comparable patients"


def support_rule() -> str:
    """Return in words when a prediction counts as well supported."""
    return (
        f"well supported: references from at least {FEWEST_PATIENTS} patients, each with a diagnosis, procedure or "
        f"drug in common with the patient; the median reference has at least {percent(SMALLEST_OVERLAP)} of the "
        f"patient's diagnoses and is more similar than {percent(SMALLEST_CLOSENESS)} of all candidates; and the known "
        f"outcomes of at least {percent(SMALLEST_AGREEMENT)} of them agree; weakly supported: anything less; "
        "no comparable patients: no reference at all"
    )


def support_of(
    scene: Scene, node: int, references: Sequence[Reference], decision: Decision, decided: tuple[int, ...]
) -> Support:
    """Return the support of a node's prediction by references, which must not be chosen by their outcomes."""
    neighbors = int(scene.graph.degrees[node])
    rate = _training_rate(scene, decision, decided)
    if not references:
        reason = scene.nobody_in_words(node)
        return Support("no comparable patients", 0, 0, 0, None, None, None, None, (reason,), training_rate=rate)
    row, own = int(scene.rows[node]), int(scene.graph.own_codes[node])
    overlap = median(reference.weight / own for reference in references) if own else None
    cosine = median(reference.cosine for reference in references)
    closeness = scene.share_farther(node, cosine)
    patients = len({int(scene.graph.sets.patients[reference.node]) for reference in references})
    reasons = []
    if patients < FEWEST_PATIENTS:
        reasons.append(_lack_of_patients(patients, len(references)))
    without = sum(
        not reference.weight and not scene.have_codes_in_common(row, reference.row) for reference in references
    )
    has_codes = own > 0 or scene.has_codes(row)
    if without:
        reasons.append(_lack_of_codes(without, len(references), has_codes))
    if overlap is None and has_codes:
        reasons.append("the patient has no recorded diagnosis that could be compared")
    elif overlap is not None and overlap < SMALLEST_OVERLAP:
        reasons.append(f"most references have few of the patient's diagnoses, typically {percent(overlap)}")
    if closeness < SMALLEST_CLOSENESS:
        reasons.append("the references are hardly more similar than other patients")
    agreement, outcomes, had = None, "", None
    bits: tuple[bool | None, ...] = (None,) * len(references)
    if scene.outcomes_known:
        labels: list[Any] = [scene.instances.labels[reference.row] for reference in references]
        agreeing = sum(decision.agrees(label, decided) for label in labels)
        agreement = agreeing / len(labels)
        outcomes = decision.counted(labels, decided)
        happened = decision.happened(np.asarray(labels), decided)
        if happened is not None:
            bits = tuple(happened.tolist())
            had = sum(happened.tolist())
        elif decision.is_set:
            bits = tuple(decision.agrees(label, decided) for label in labels)
        if agreement < SMALLEST_AGREEMENT:
            each_is_a_patient = patients == len(references) and without < len(references)
            whom = "similar patients" if each_is_a_patient else "references"
            reasons.append(_lack_of_agreement(agreeing, len(references), whom, decision.agreed))
    else:
        reasons.append("the references are other evaluated patients, whose outcomes the model does not know")
    return Support(
        word="weakly supported" if reasons else "well supported",
        references=len(references),
        patients=patients,
        neighbors=neighbors,
        overlap=overlap,
        cosine=cosine,
        closeness=closeness,
        agreement=agreement,
        reasons=tuple(reasons)
        or (f"{percent(agreement or 0.0)} of {counted(len(references), 'close reference')} {decision.agreed}",),
        outcomes=outcomes,
        training_rate=rate,
        had=had,
        bits=bits,
        without_codes=without,
    )


def _lack_of_codes(without: int, references: int, has_codes: bool) -> str:
    """Say that references have no code in common with the patient."""
    if not has_codes:
        return f"the patient has no recorded diagnosis, procedure or drug: the references are {ALIKE_WITHOUT_CODES}"
    if without == references:
        return f"no reference shares a diagnosis, procedure or drug with the patient: they are {ALIKE_WITHOUT_CODES}"
    share, they = ("shares", "it is") if without == 1 else ("share", "they are")
    return (
        f"{without} of {counted(references, 'reference')} {share} no diagnosis, procedure or drug with the patient: "
        f"{they} {ALIKE_WITHOUT_CODES}"
    )


def _lack_of_patients(patients: int, references: int) -> str:
    """Say that few people are behind the references."""
    if patients == references:
        return f"only {counted(patients, 'similar patient')}"
    return f"the {references} references are visits of only {counted(patients, 'patient')}"


def _lack_of_agreement(agreeing: int, references: int, whom: str, agreed: str) -> str:
    """Say that the outcomes of few references are what was predicted."""
    if references == 1:
        return "what became of the only reference is not what was predicted"
    if not agreeing:
        return f"none of the {references} {whom} {agreed}"
    return f"only {agreeing} of the {references} {whom} {agreed}"


def _training_rate(scene: Scene, decision: Decision, decided: tuple[int, ...]) -> str:
    happened = decision.happened(scene.training_labels, decided)
    if happened is None:
        return ""
    number, total = int(happened.sum()), len(happened)
    words = f"{decision.event(decided)} in {shown_share(number, total)} visits that the model learned from"
    if not decision.ordered:
        return words
    near = sum(decision.agrees(label, decided) for label in scene.training_labels)
    # The two shares must not tell how few had an adjacent class.
    hidden = tells_a_small_count(number, total) or tells_a_small_count(near, total) or is_small(near - number)
    return words if hidden else f"{words}, this class or an adjacent one in {percent(near / total, 1)}"
