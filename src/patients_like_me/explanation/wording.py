"""The sentences of an explanation: turning sets, where references come from, and the rules behind its words."""

from __future__ import annotations

from typing import Final

from patients_like_me import __version__
from patients_like_me.explanation.counter_references import EXACT_UP_TO, TurningSet
from patients_like_me.explanation.decision import SET_AGREEMENT, Decision
from patients_like_me.explanation.evidence import tie_rule
from patients_like_me.explanation.explanation import Turning
from patients_like_me.explanation.references import MOST_REFERENCES
from patients_like_me.explanation.scene import Scene
from patients_like_me.explanation.support import support_rule
from patients_like_me.graph.people import ONLY_REFERENCES_OF
from patients_like_me.plain_text import listed, percent

#: What is said where validation had too few outcomes to recalibrate, or nobody asked for it.
NOT_ADJUSTED: Final = (
    "The probabilities were not adjusted to how often the outcome really happens: all may be too high, or all too low."
)


def turning_in_words(
    found: TurningSet | None, names: dict[int, str], decision: Decision, decided: tuple[int, ...], others: int = 0
) -> Turning:
    """Write what a search for the smallest turning set found."""
    stay = f" {_who_stays(others)}" if others else ""
    if found is None:
        return Turning((), "", None, f"{_nothing_turns(len(names))}{stay}")
    gone = tuple(names[node] for node in found.nodes)
    if len(gone) == 1:
        surely = ""
    elif found.is_smallest:
        surely = " Leaving out fewer would not change it."
    else:
        surely = " They were found step by step: fewer may be enough."
    answer = decision.in_words(found.probabilities)
    detail = ""
    if decision.is_set:
        after = decision.key(found.probabilities)
        lost = [decision.plain_name(label) for label in decided if label not in after]
        won = [decision.plain_name(label) for label in after if label not in decided]
        changes = {f"no longer {decision.words.chosen}": lost, "newly": won}
        detail = "; ".join(f"{change}: {', '.join(codes)}" for change, codes in changes.items() if codes)
        detail = f" ({detail})"
    sentence = f"Without {listed(gone)} the decision would be “{answer}”{detail}.{surely}{stay}"
    return Turning(gone, answer, decision.probability(found.probabilities), sentence)


def _nothing_turns(references: int) -> str:
    """Say that the decision stays, whichever references are left out."""
    if references == 1:
        return "Without the only reference the decision stays the same."
    if references <= EXACT_UP_TO:
        return f"Whichever of the {references} references are left out, the decision stays the same."
    return (
        f"Whichever {EXACT_UP_TO} or fewer of the {references} references are left out, the decision stays the same. "
        "It does so too when all are left out one after the other, the strongest first."
    )


def _who_stays(others: int) -> str:
    """Say that only the references that are shown were left out."""
    if others == 1:
        return "One more reference, which is not shown, was kept throughout."
    return f"The {others:,} other references, which are not shown, were kept throughout."


def notes_on(scene: Scene, any_references: bool = True) -> list[str]:
    """Return what a reader must know about how these references came about."""
    notes = []
    if not scene.uses_graph:
        notes.append(
            "This run predicts from the patient's own record alone. The references are similar earlier "
            "patients; the prediction does not use them."
        )
    elif any_references and scene.mode == "bank":
        version = scene.run.bank_version
        grown = version is not None and version.record.additions
        added = ", among them those added to the bank since the training" if grown else ""
        notes.append(f"The references are earlier patients whose outcomes are known{added}; the prediction uses them.")
    elif any_references:
        notes.append(
            "The references are other patients who are predicted (as in the paper): the prediction uses their records, "
            "but their outcomes are not known to the model and are not shown."
        )
    if scene.instances.settings.inputs == "retrospective" and scene.newcomers:
        notes.append(
            "The model learned from codes that are assigned after discharge. Of this patient "
            "it read the codes that were given: while a stay goes on these are fewer, and the prediction can be off."
        )
    elif scene.instances.settings.inputs == "retrospective":
        notes.append(
            "The model saw the current visit's codes, which are assigned after discharge: this is a retrospective "
            "prediction."
        )
    if scene.run.calibration_for(newcomers=scene.newcomers) is None:
        notes.append(NOT_ADJUSTED)
    return notes


def settings_in_words(scene: Scene) -> dict[str, str]:
    """Return the settings that decide what is shown."""
    graph = scene.graph.settings
    return {
        "strategy": scene.run.name,
        "references from": scene.mode,
        "tau": str(graph.tau),
        "neighbours kept": "all" if graph.max_neighbors is None else f"strongest {graph.max_neighbors}",
        "self-loop": graph.self_loop,
        ONLY_REFERENCES_OF: graph.person_rule.in_words(),
        "inputs": scene.instances.settings.inputs,
        "cohort": f"{scene.cohort.source}, {scene.cohort.hash[:12]}",
        "version": __version__,
    }


def rules(decision: Decision) -> tuple[tuple[str, str], ...]:
    """Return the rules by which words and marks on the page were chosen."""
    agreement = "a reference agrees if its known outcome is what was predicted"
    if decision.is_set:
        words, share = decision.words, percent(SET_AGREEMENT)
        agreement = f"a reference agrees if it {words.had} at least {share} of the {words.chosen} {words.items}"
    elif decision.ordered:
        agreement = "a reference agrees if its class is the predicted one or an adjacent one"
    found = [
        ("references", f"up to {MOST_REFERENCES} neighbours in the patient graph, those with the highest cosine"),
        ("support", support_rule()),
        ("agreement", agreement),
        ("tied diagnosis", tie_rule()),
    ]
    if decision.kind.has_threshold:
        found.append(
            (
                "threshold",
                f"the answer is yes at a probability of {decision.threshold:.3g} or more ({decision.threshold_origin})",
            )
        )
    return tuple(found)
