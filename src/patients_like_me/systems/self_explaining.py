"""What the explanations of the networks over visits share: one instance as a network reads it, with names for all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from patients_like_me.plain_text import printable
from patients_like_me.records.cohort import KINDS, Kind
from patients_like_me.runs.calibration import Calibration
from patients_like_me.systems.contract import ExplanationTable, Fitted
from patients_like_me.systems.features import VisitBatch, Vocabularies
from patients_like_me.systems.problem import only
from patients_like_me.systems.visit_network import VisitNetwork, features_of, vocabularies_of
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.kinds import PAPER_THRESHOLD

#: Most rows of a table over codes.
MOST_ROWS = 40
#: Most options of a prediction that are listed.
MOST_OPTIONS = 15


@dataclass(frozen=True)
class Reading:
    """One instance as a fitted network reads it, and the words for what is in it."""

    network: Any
    batch: VisitBatch
    instances: Instances
    vocabularies: Vocabularies
    calibration: Calibration | None = None

    @classmethod
    def of(cls, model: VisitNetwork, fitted: Fitted, instances: Instances, row: int) -> Reading:
        """Read one row of the instances."""
        batch = features_of(fitted, only(instances, np.array([row]))).batch(np.array([0]))
        return cls(model.opened(fitted), batch, instances, vocabularies_of(fitted.facts), fitted.calibration)

    @cached_property
    def logits(self) -> Tensor:
        """The logits [outputs] of the instance."""
        with torch.no_grad():
            logits: Tensor = self.network(self.batch)[0]
        return logits

    @cached_property
    def probabilities(self) -> list[float]:
        """The probabilities of the outputs."""
        kind = self.instances.task.kind
        found = kind.probabilities(self.logits[None].double().numpy())
        if self.calibration is not None:
            found = self.calibration.apply(kind, found)
        return [float(value) for value in found[0]]

    @property
    def visits(self) -> int:
        """The number of visits of the record, the current one included."""
        return int(self.batch.visit_mask.sum())

    @cached_property
    def names(self) -> dict[Kind, dict[str, str]]:
        """The readable names of the codes of each kind."""
        return {kind: self.instances.cohort.names(kind) for kind in KINDS}

    def label(self, kind: Kind, code: str) -> str:
        """Return a code with its name, where it has one."""
        name = self.names[kind].get(code)
        return printable(code if name in (None, code) else f"{code}: {name}")

    def codes(self) -> list[tuple[int, Kind, int, str]]:
        """Return place of the visit, kind, place in the tensor and label of every code of the record."""
        return [
            (visit, kind, place, self.label(kind, self.vocabularies.codes[kind][number - 1]))
            for kind in KINDS
            for visit, numbers in enumerate(self.batch.codes[kind][0, : self.visits].tolist())
            for place, number in enumerate(numbers)
            if number
        ]

    def visit(self, place: int) -> str:
        """Return a visit in words; the last one is the current one."""
        back = self.visits - 1 - place
        return "current visit" if not back else f"{back} visit{'s' if back > 1 else ''} before"

    def output(self, wanted: int | None) -> int:
        """Return the output to explain: the wanted one, or the most probable one."""
        return int(np.argmax(self.probabilities)) if wanted is None else wanted

    def output_label(self, output: int) -> str:
        """Return what an output stands for."""
        task, labels = self.instances.task, self.instances.label_vocabulary
        if task.kind.is_event:
            return task.words.about
        return self.drug(output) if task.label_codes == "medication" else printable(labels[output])

    def drug(self, output: int) -> str:
        """Return the label of a drug that is an output."""
        return self.label("medication", self.instances.label_vocabulary[output])

    def recommended(self) -> Tensor:
        """Return which outputs [outputs] reach the threshold of a recommended set."""
        return torch.tensor(self.probabilities) >= PAPER_THRESHOLD

    def prediction(self) -> ExplanationTable:
        """Return the prediction itself, the most probable outputs first."""
        order = np.argsort(self.probabilities)[::-1][:MOST_OPTIONS]
        more = len(self.probabilities) - len(order)
        return ExplanationTable(
            "Prediction",
            ("what", "probability"),
            tuple((self.output_label(int(at)), self.probabilities[int(at)]) for at in order),
            f"{more} less probable ones are not listed." if more else "",
        )


def strongest(rows: list[tuple[str | float, ...]], column: int) -> tuple[tuple[str | float, ...], ...]:
    """Return the rows with the largest values of one column, either sign, as many as a table shows.

    >>> strongest([("a", 1.0), ("b", -2.0)], 1)
    (('b', -2.0), ('a', 1.0))
    """
    return tuple(sorted(rows, key=lambda row: -abs(float(row[column])))[:MOST_ROWS])


def interaction_tables(reading: Reading) -> tuple[ExplanationTable, ...]:
    """Return the known interactions within the recommended set; none where the network knows none."""
    known = reading.network.interactions
    if known is None:
        return ()
    chosen = reading.recommended()
    pairs = known.pairs(chosen)
    unknown = [reading.drug(int(at)) for at in (chosen & ~known.covered).nonzero().flatten()]
    rate = float(known.rates(chosen[None])[0])
    sentence = (
        f"Of the {int(chosen.sum())} drugs with a probability of {PAPER_THRESHOLD} or more, {len(pairs)} pairs "
        f"interact according to the installed table: {100 * rate:.1f} % of the known pairs."
    )
    if unknown:
        sentence += f" Not covered by the table: {', '.join(unknown)}."
    rows = tuple((reading.drug(first), reading.drug(second)) for first, second in pairs)
    return (ExplanationTable("Interacting pairs of the recommended set", ("drug", "interacts with"), rows, sentence),)
