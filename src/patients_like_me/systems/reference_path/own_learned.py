"""What a fitted own path makes of instances, for the similarities that compare it (:mod:`.learned`)."""

from __future__ import annotations

from typing import Any, Final

from patients_like_me.errors import PlmError
from patients_like_me.systems.reference_path.learned import LEAVES, TRAINED, Values
from patients_like_me.systems.reference_path.own_parts import OwnParts
from patients_like_me.tasks.instances import Instances

#: Most trees whose leaves are compared: the first rounds of all outputs. More cost time and say little.
MOST_TREES: Final = 600


def learned_of(own: OwnParts, instances: Instances, settings: Any) -> dict[str, Values]:
    """Return the learned values of instances, by the name of their similarity, as far as the settings ask for them.

    A language model that was best left as it is has no trained embedding: then there is none.
    """
    found: dict[str, Values] = {}
    if LEAVES in settings.relations:
        if "boosting" not in own.fitted:
            raise PlmError(
                "the relation 'leaves' reads the trees of 'boosting', which the own path does not have",
                remedy="add boosting to own_path, or leave the relation out",
            )
        from patients_like_me.systems.boosting import leaves_of

        found[LEAVES] = leaves_of(own.fitted["boosting"], instances, MOST_TREES)
    if TRAINED in settings.relations and "linear" in own.fitted:
        fitted = own.fitted["linear"]
        layers = {name: value for name, value in fitted.arrays.items() if name.startswith("lm.")}
        if layers:
            from patients_like_me.systems.trained_embeddings import embeddings_by

            found[TRAINED] = embeddings_by(
                layers, instances, fitted.settings.tuned_embedder, fitted.settings.max_tokens
            )
    return found
