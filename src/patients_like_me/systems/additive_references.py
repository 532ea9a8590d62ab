"""What explanations ask of a system whose references bring their outcomes: z = u + the sum of their exact shares.

A system that declares ``additive_references`` returns such an object for what it fitted. It is then explained, audited,
reported and served with the share of every reference, whoever wrote it. ``reference_path.model`` is the one of this
package. Lists name for every instance its references by their places in the bank, and how similar they are; a reference
whose similarity is 0 is not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from patients_like_me.systems.problem import Logits
from patients_like_me.systems.reference_path.relations import Neighbours
from patients_like_me.systems.reference_path.shares import ReferenceShares
from patients_like_me.tasks.instances import Instances

Lists = dict[str, Neighbours]


class ComparedInstances(Protocol):
    """What is compared of some instances."""

    @property
    def codes(self) -> Any:
        """Which codes they have, as a sparse matrix [N, F]."""

    @property
    def subjects(self) -> Sequence[str]:
        """The patient of each, by the id of the source."""


class BankOfOutcomes(Protocol):
    """Labelled instances as references, in the order of the run's records."""

    def __len__(self) -> int: ...

    @property
    def instance_ids(self) -> tuple[str, ...]:
        """The names of the instances."""

    @property
    def described(self) -> ComparedInstances:
        """What is compared of them."""

    @property
    def targets(self) -> npt.NDArray[np.int8]:
        """The outcomes [J, K]."""

    @property
    def residuals(self) -> npt.NDArray[np.float32]:
        """What a model that never saw the patient did not expect of the outcomes [J, K]."""


class AdditiveReferences(Protocol):
    """A fitted system whose predictions are an own answer and exact shares of references."""

    @property
    def bank(self) -> BankOfOutcomes:
        """The references."""

    @property
    def uses_references(self) -> bool:
        """Tell whether any prediction uses them."""

    @property
    def chose_no_references(self) -> bool:
        """Tell whether they are not used because they did not make predictions better."""

    def in_words(self) -> Mapping[str, str]:
        """Return what a page says about own answers and lists, by headings."""

    def own_logits(self, instances: Instances) -> Logits:
        """Return the own answers u [N, K], which use no reference."""

    def described(self, instances: Instances, *, codes_alone: bool = False) -> Any:
        """Return what is compared of some instances; with ``codes_alone`` nothing that takes long."""

    def weighted(self, described: Any) -> Any:
        """Return the codes of described instances as sparse rows of length 1, whose products are cosines."""

    def lists(self, instances: Instances) -> Lists:
        """Return the references of some instances, as predictions use them."""

    def lists_of(self, described: Any, instance_ids: list[str]) -> Lists:
        """Return the same for instances that are described already."""

    def similar(self, described: Any) -> Lists:
        """Return similar patients for a page, where predictions use no reference."""

    def correction(self, lists: Lists) -> npt.NDArray[np.float64]:
        """Return z - u [N, K]."""

    def shares(self, instance: int, lists: Lists) -> ReferenceShares:
        """Return what each reference of one instance gives to its correction."""

    def with_residuals(self, residuals: npt.NDArray[np.float32]) -> AdditiveReferences:
        """Return the same with other residuals: for the audit, which plants outcomes."""

    def sending_from(self, places: npt.NDArray[np.int64]) -> AdditiveReferences:
        """Return what corrects by lists that count within these places of the bank."""
