"""The explanation of a prediction whose references bring their outcomes: each one's exact share of the correction.

"Of the +7 points of risk, R1 gives +2 because it was readmitted although its own record did not suggest it." Shares add
up to the correction in the target logit; in percentage points each gets the same part of the whole change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from patients_like_me.errors import PlmError
from patients_like_me.explanation.explain import Explainer
from patients_like_me.explanation.explanation import ExplainedReference, Explanation, WhatIf
from patients_like_me.explanation.reference_scene import ReferenceScene
from patients_like_me.explanation.references import MOST_REFERENCES, Reference
from patients_like_me.explanation.scene import Scene
from patients_like_me.explanation.support import support_of
from patients_like_me.explanation.target_edges import Floats
from patients_like_me.explanation.what_if import CHANGED_KINDS, Change, changed_scene
from patients_like_me.plain_text import counted


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
        """The references by name: R1 has the largest share, whatever its sign."""
        return self.numbered(self._largest(self.scene, self.shares))

    def _largest(self, scene: Scene, shares: dict[int, float]) -> list[Reference]:
        """Return the references with the largest shares on a scene."""
        cosines = scene.cosines_to(self.node)
        neighbors, weights = scene.graph.neighbors_of(self.node)
        weight_of = dict(zip(neighbors.tolist(), weights.tolist(), strict=True))
        order = sorted(shares, key=lambda node: (-abs(shares[node]), node))[:MOST_REFERENCES]
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

    def points(self, share: float) -> float | None:
        """Return a share in percentage points: the same part of the change that all references make together."""
        total = sum(self.shares.values())
        if self.own_probability is None or self._column is None or not total:
            return None
        change = float(self.probabilities[self._column]) - self.own_probability
        return 100.0 * change * share / total

    def explained(self, name: str, reference: Reference) -> ExplainedReference:
        """Return one reference as shown on the page, with its share and the reason for it."""
        share = self.shares.get(reference.node, 0.0)
        return replace(
            super().explained(name, reference),
            share=share,
            points=self.points(share),
            because=self._because(reference),
        )

    def _because(self, reference: Reference) -> str:
        surprise = self.surprises.get(reference.node, 0.0)
        if surprise == 0:
            return "its outcome was as its own record suggested"
        words = f"it had {'more' if surprise > 0 else 'less'} of the outcome than its own record suggested"
        if self.shares[reference.node] * surprise < 0:
            words += ", and the model reads patients who are alike in this way as a contrast"
        return f"{words} ({surprise:+.2f})"

    def what_if(self, change: Change) -> WhatIf:
        """Drop references and return the exact prediction without them; tau belongs to a patient graph."""
        if change.tau is not None or (change.changes_record and self.after is None):
            raise PlmError(
                "this system can answer what happens without references, not with another tau or other diagnoses",
                remedy="use --drop alone",
            )
        after = self.changed(change)
        assert isinstance(after, ReferenceScene)
        name_of = {reference.node: name for name, reference in self.named.items()}
        references: dict[str, Reference] = {}
        joined: list[str] = []
        for reference in self._largest(after, after.shares_in(self.node, self.choice.double().numpy())):
            if reference.node not in name_of:
                joined.append(f"J{len(joined) + 1}")
            references[name_of.get(reference.node, joined[-1] if joined else "")] = reference
        decided = self.decision.key(after.probabilities(self.node))
        support = support_of(after, self.node, list(references.values()), self.decision, decided)
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
        )

    def changed(self, change: Change) -> Scene:
        """Return the scene of the changed record, where there is one, without the references that are dropped."""
        scene = self.scene if self.after is None else self.after
        return changed_scene(scene, self.row, Change(drop=change.drop), self.named)

    def sentences(self) -> list[str]:
        """Return what all references together do to the probability."""
        if not self.shares or self.own_probability is None or self._column is None:
            return []
        now = float(self.probabilities[self._column])
        words = (
            f"Without references the probability would be {100 * self.own_probability:.1f} %, with them it is "
            f"{100 * now:.1f} % ({100 * (now - self.own_probability):+.1f} points)."
        )
        return [words]

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
        settings: dict[str, Any] = self.scene.run.identity.settings
        shown = {
            **found.settings,
            "own path": ", ".join(settings["own_path"]),
            "neighbours kept": f"strongest {max(settings['k'])} of each relation",
        }
        rules = [
            ("references", f"the {MOST_REFERENCES} with the largest share of the correction, whatever its sign"),
            (
                "share",
                (
                    "the part of the correction that comes from a reference: its weight times what its own record did "
                    "not suggest about its outcome; all shares add up to the correction"
                ),
            ),
        ]
        if self.shares:
            rules.append(("correction", self._correction()))
        others = tuple(rule for rule in found.rules if rule[0] != "references")
        return replace(found, settings=shown, rules=(*rules, *others), notes=(*found.notes, *self.sentences()))
