"""Recalibrated probabilities: a map that was fitted on validation and belongs to the run's record.

``predictions.parquet`` keeps what the system said; the map is applied whenever probabilities are read, so predictions,
explanations and evaluations say the same. One map serves all outputs of a run:

==========  ===================================  ======================================================
kind        logistic                             isotonic
==========  ===================================  ======================================================
binary      logit p' = a + b logit p             p' = f(p), f non-decreasing
multiclass  p' in proportion to p ** b (one      p' in proportion to f(p)
            temperature, 1 / b)
multilabel  the binary map for every code        the binary map for every code
==========  ===================================  ======================================================

With b above 0 the logistic map keeps the order of the instances of a yes-or-no label, of the instances for each code
and of the codes of an instance, and it keeps the likeliest class.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from patients_like_me.errors import PlmError
from patients_like_me.tasks.kinds import LabelKind, Probabilities

CalibrationMethod = Literal["logistic", "isotonic"]
#: What a user can ask for; ``none`` leaves the probabilities as the system said them.
Wanted = Literal["logistic", "isotonic", "none"]
WANTED: Final[tuple[str, ...]] = get_args(Wanted)


class Calibration(BaseModel):
    """A fitted map; ``knots`` are the corners (p, f(p)) of the isotonic one.

    >>> from patients_like_me.tasks.kinds import BINARY
    >>> Calibration(method="logistic", slope=0.5, instances=40).apply(BINARY, np.array([[0.9]])).round(2).tolist()
    [[0.75]]
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: CalibrationMethod
    intercept: float = 0.0
    slope: float = Field(1.0, gt=0)
    knots: tuple[tuple[float, float], ...] = ()
    instances: int = Field(description="validation instances that it was fitted on")

    @model_validator(mode="after")
    def _knots_rise(self) -> Calibration:
        predicted, observed = [p for p, _ in self.knots], [f for _, f in self.knots]
        if self.method == "isotonic" and (
            not self.knots or predicted != sorted(predicted) or observed != sorted(observed)
        ):
            raise ValueError("the knots of an isotonic map must rise")
        return self

    def apply(self, kind: LabelKind, probabilities: npt.NDArray[Any]) -> Probabilities:
        """Return the recalibrated probabilities [N, outputs]."""
        exact = np.asarray(probabilities, dtype=np.float64)
        if self.method == "logistic":
            # A probability of 0 or 1 stays what it is.
            return kind.probabilities(self.intercept + self.slope * kind.logits(exact))
        predicted, observed = np.array(self.knots).T
        found = np.interp(exact, predicted, observed)
        return kind.normalised(found)

    def in_words(self) -> str:
        """Return the map in a few words.

        >>> Calibration(method="logistic", intercept=-0.2, slope=0.54, instances=582).in_words()
        'logistic on 582 validation instances: slope 0.54, intercept -0.20'
        """
        detail = f"slope {self.slope:.2f}, intercept {self.intercept:.2f}"
        if self.method == "isotonic":
            detail = f"{len(self.knots)} corners"
        return f"{self.method} on {self.instances:,} validation instances: {detail}"


def wanted_method(name: str) -> Wanted:
    """Return the method of a name; a wrong name is refused with those there are."""
    for method in get_args(Wanted):
        if method == name:
            found: Wanted = method
            return found
    raise PlmError(f"there is no calibration '{name}'", remedy=f"choose one of {', '.join(WANTED)}")
