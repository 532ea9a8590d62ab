"""The explanation of a prediction whose references bring their outcomes: each one's exact share of the correction.

"Of the +7 points of risk, R1 gives +2 because it was readmitted although its own record did not suggest it." Shares add
up to the correction in the target logit, and points to the change of the probability.

Who has much influence had an outcome that was not expected: ten such patients say nothing about what usually becomes of
patients like this one. Support, and the count of outcomes, are therefore those of the most similar patients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from patients_like_me.errors import PlmError
from patients_like_me.explanation.explain import OWN_RECORD_ALONE, Explainer
from patients_like_me.explanation.explanation import ExplainedReference, Explanation, WhatIf
from patients_like_me.explanation.reference_scene import ReferenceScene
from patients_like_me.explanation.references import MOST_REFERENCES, Reference, references_of
from patients_like_me.explanation.scene import Scene
from patients_like_me.explanation.support import Support, support_of
from patients_like_me.explanation.target_edges import Floats
from patients_like_me.explanation.what_if import CHANGED_KINDS, Change, changed_scene
from patients_like_me.plain_text import counted

#: At how many places of the way the slope of a probability is taken, and by which change of a logit.
_PLACES: Final = 8
_STEP: Final = 1e-4
_LEFT_OUT: Final = (
    "When this run was trained, the outcomes of similar patients did not make predictions better, so none is used."
)


@dataclass(frozen=True, eq=False)
class ShareExplainer(Explainer):
    """The explanation of one instance of a reference scene; ``after`` is the scene of the patient's changed record."""

    after: ReferenceScene | None = None

    @cached_property
    def shares(self) -> dict[int, float]:
        """The share of every reference in the target logit, by its node; they add up to the correction."""
        return self.reference_scene.shares_in(self.node, self.choice.double().numpy())

    @property
    def reference_scene(self) -> ReferenceScene:
        """The scene, whose references have shares."""
        assert isinstance(self.scene, ReferenceScene)
        return self.scene

    @cached_property
    def surprises(self) -> dict[int, float]:
        """R of every reference for the target outputs; above 0: more of the outcome than its own record suggested."""
        residuals, chosen = self.reference_scene.known.model.bank.residuals, self.choice.double().numpy()
        return {node: float(residuals[node] @ chosen) for node in self.shares}

    @cached_property
    def named(self) -> dict[str, Reference]:
        """The references by name: R1 has the most influence, whatever its sign; if none is used, the most similar."""
        return self.numbered(self._shown(self.reference_scene))

    @cached_property
    def nearest(self) -> list[Reference]:
        """The most similar patients, whatever their outcomes and their shares."""
        return references_of(self.scene, self.node)

    @cached_property
    def support(self) -> Support:
        """How well the most similar patients support the prediction."""
        return support_of(self.scene, self.node, self.nearest, self.decision, self.decided)

    def _shown(self, scene: ReferenceScene) -> list[Reference]:
        """Return the references with the most influence on a scene."""
        shares = scene.shares_in(self.node, self.choice.double().numpy())
        if not shares:
            return references_of(scene, self.node)
        influence = self._points_on(scene) or shares
        cosines = scene.cosines_to(self.node)
        neighbors, weights = scene.graph.neighbors_of(self.node)
        weight_of = dict(zip(neighbors.tolist(), weights.tolist(), strict=True))
        order = sorted(shares, key=lambda node: (-abs(influence[node]), node))[:MOST_REFERENCES]
        return [Reference(node, int(scene.rows[node]), int(weight_of[node]), float(cosines[node])) for node in order]

    @cached_property
    def own_probability(self) -> float | None:
        """The probability of the decided outcome without any reference; None for a set of codes."""
        column = self._column
        if column is None:
            return None
        return float(self.scene.probabilities_of(self.own_logits[None])[0, column])

    @property
    def own_logits(self) -> Floats:
        """The own answer u [outputs] of the instance."""
        known = self.reference_scene.known
        found: Floats = known.own[self.node - known.first]
        return found

    @property
    def _column(self) -> int | None:
        return None if self.decision.is_set else self.decision.column(self.probabilities)

    @cached_property
    def points(self) -> dict[int, float]:
        """What every reference does to the shown probability, in percentage points, by its node; none for a set.

        They add up to the change that all references make together.
        """
        return self._points_on(self.reference_scene)

    def _points_on(self, scene: ReferenceScene) -> dict[int, float]:
        """Return the points of every reference of the instance on a scene.

        On the straight way from the own answer u to z all references do their parts at the same pace: the points of
        one are its shares in all outputs times the mean slope of the probability. With one output that is its share of
        the change. The probability of a class also depends on what a reference says about the other classes.
        """
        column = self._column
        if column is None or not scene.uses_graph:
            return {}
        found = scene.known.shares_of(self.node)
        own = scene.known.own[self.node - scene.known.first]
        slopes = _mean_slopes(scene, own, own + found.shares.sum(axis=0), column)
        return dict(zip(found.references.tolist(), (100.0 * found.shares @ slopes).tolist(), strict=True))

    def explained(self, name: str, reference: Reference) -> ExplainedReference:
        """Return one reference as shown on the page, with its share and the reason for it."""
        found = super().explained(name, reference)
        if not self.shares:
            return found
        return replace(
            found,
            share=self.shares.get(reference.node, 0.0),
            points=self.points.get(reference.node),
            because=self._because(name, reference),
        )

    def _because(self, name: str, reference: Reference) -> str:
        surprise = self.surprises.get(reference.node, 0.0)
        if surprise == 0:
            return f"the outcome of {name} was as its own record suggested"
        words = f"{name} {self._surprise_in_words(surprise > 0)}"
        share, points = self.shares[reference.node], self.points.get(reference.node, 0.0)
        if share * surprise < 0:
            words += "; the model takes patients who are alike in this way as a contrast"
        if share * points < 0:
            words += f"; {name} speaks even more {'against' if points > 0 else 'for'} other answers"
        return words

    def _surprise_in_words(self, more: bool) -> str:
        """Say what a reference had that its own record did not suggest, or had not although it did."""
        words = self.decision.words
        if self.decision.is_set:
            amount = "more" if more else "fewer"
            return f"{words.had} {amount} of the {words.chosen} {words.items} than its own record suggested"
        had, had_not = (words.had, words.had_not) if self.decision.label is not None else ("had", "did not have")
        it = "the outcome" if self.decision.label is None else self.decision.plain_name(self.decision.label)
        if more:
            return f"{had} {it}, which its own record did not fully suggest"
        return f"{had_not} {it}, which its own record partly suggested"

    def what_if(self, change: Change) -> WhatIf:
        """Drop references and return the exact prediction without them; tau belongs to a patient graph."""
        if change.tau is not None or (change.changes_record and self.after is None):
            raise PlmError(
                "of a run of references another tau is not answered, and changed codes only where patients are served",
                remedy="use --drop alone, or ask about changed codes in plm serve",
            )
        after = self.changed(change)
        assert isinstance(after, ReferenceScene)
        name_of = {reference.node: name for name, reference in self.named.items()}
        references: dict[str, Reference] = {}
        joined: list[str] = []
        for reference in self._shown(after):
            if reference.node not in name_of:
                joined.append(f"J{len(joined) + 1}")
            references[name_of.get(reference.node, joined[-1] if joined else "")] = reference
        decided = self.decision.key(after.probabilities(self.node))
        support = support_of(after, self.node, references_of(after, self.node), self.decision, decided)
        return WhatIf(
            change=change.in_words(*(after.cohort.names(kind) for kind in CHANGED_KINDS)),
            before=self.state(self.scene, list(self.named)),
            after=self.state(after, list(references)),
            left=tuple(name for name in self.named if name not in references),
            joined=tuple(joined),
            newcomers=tuple(
                f"{name}: {counted(references[name].weight, 'shared diagnosis', 'shared diagnoses')}" for name in joined
            ),
            support=support.word,
            notes=() if self.scene.uses_graph else (OWN_RECORD_ALONE,),
        )

    def changed(self, change: Change) -> Scene:
        """Return the scene of the changed record, where there is one, without the references that are dropped."""
        scene = self.scene if self.after is None else self.after
        return changed_scene(scene, self.row, Change(drop=change.drop), self.named)

    def sentences(self) -> list[str]:
        """Return what all references together do to the probability, and who of them is shown."""
        if not self.shares:
            return []
        found = []
        if self.own_probability is not None and self._column is not None:
            now = float(self.probabilities[self._column])
            found.append(
                f"Without references the probability would be {100 * self.own_probability:.1f} %, with them it is "
                f"{100 * now:.1f} % ({100 * (now - self.own_probability):+.1f} points)."
            )
            calibration = self.scene.run.record.calibration
            if calibration is not None and calibration.method == "isotonic":
                found.append(
                    "The probabilities are recalibrated in steps (isotonic): one reference can move the probability "
                    "over a whole step, much further than the other references together."
                )
        if len(self.shares) > len(self.named):
            found.append(
                f"The prediction uses {len(self.shares)} references; the {len(self.named)} with the most influence are "
                "shown. Those with an unexpected outcome have the most, so what became of them is not what usually "
                f"happens: the outcomes above are counted among {self._nearest_in_words()}."
            )
        return found

    def _nearest_in_words(self) -> str:
        if self.support.is_without_codes:
            return f"{len(self.nearest)} others, who have no code in common with the patient either"
        return f"the {len(self.nearest)} most similar patients"

    def _correction(self) -> str:
        total = sum(self.shares.values())
        shown = sum(self.shares[reference.node] for reference in self.named.values())
        return (
            f"all {counted(len(self.shares), 'reference')} together change the target logit by {total:+.3f}; "
            f"the {len(self.named)} shown give {shown:+.3f} of it"
        )

    def explanation(self, change: Change | None = None) -> Explanation:
        """Return the whole explanation, with a what-if where a change is asked for."""
        found = super().explanation(change)
        model = self.reference_scene.known.model
        shown = {**found.settings, **model.in_words()}
        others = tuple(rule for rule in found.rules if rule[0] != "references")
        if not self.shares:
            nearest = ("references", f"the {MOST_REFERENCES} whose codes are most similar; the prediction uses none")
            notes = (*found.notes, _LEFT_OUT) if model.chose_no_references else found.notes
            return replace(found, settings=shown, rules=(nearest, *others), notes=notes)
        rules = [
            ("references", f"the {MOST_REFERENCES} with the most influence on the prediction, whatever its sign"),
            ("support and outcomes", f"those of the {MOST_REFERENCES} whose codes are most similar"),
            (
                "share",
                (
                    "the part of the correction that comes from a reference: its weight times what its own record did "
                    "not suggest about its outcome; all shares add up to the correction"
                ),
            ),
        ]
        rules.append(("correction", self._correction()))
        return replace(found, settings=shown, rules=(*rules, *others), notes=(*found.notes, *self.sentences()))


def _mean_slopes(scene: ReferenceScene, first: Floats, last: Floats, column: int) -> Floats:
    """Return by how much the probability of a column rises with each logit, on average from one answer to another."""
    if not scene.task.kind.adds_up:
        way = float(last[column] - first[column])
        ends = scene.probabilities_of(np.stack([first, last]))[:, column]
        if way:
            alone: Floats = np.where(np.arange(len(first)) == column, (ends[1] - ends[0]) / way, 0.0)
            return alone
    places, weights = np.polynomial.legendre.leggauss(_PLACES)
    on_the_way = first + (0.5 * (places + 1))[:, None] * (last - first)
    steps = _STEP * np.eye(len(first))
    tried = np.concatenate([(on_the_way[:, None] + side * steps).reshape(-1, len(first)) for side in (1, -1)])
    above, below = scene.probabilities_of(tried)[:, column].reshape(2, _PLACES, len(first))
    found: Floats = 0.5 * weights @ (above - below) / (2 * _STEP)
    return found
