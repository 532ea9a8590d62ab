"""Vectors of names of codes and other entities by a language model that is not trained. No patient is involved."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from patients_like_me.model.settings import BackboneSettings
from patients_like_me.records.cohort import Kind
from patients_like_me.tasks.instances import Instances


@lru_cache(maxsize=1)
def _frozen(settings: BackboneSettings) -> Any:
    from patients_like_me.model.devices import best_device
    from patients_like_me.model.loading import load_backbone

    return load_backbone(settings.model_copy(update={"trainable_layers": 0, "lora_layers": 0})).to(best_device())


def name_embeddings(names: Sequence[str], settings: BackboneSettings) -> npt.NDArray[np.float32]:
    """Return one vector of length 1 per name, [names, width of the backbone]."""
    from patients_like_me.model.prompt_inputs import prepare_inputs

    backbone = _frozen(settings)
    if not names:
        return np.zeros((0, backbone.width), dtype=np.float32)
    different = list(dict.fromkeys(names))
    pooled = prepare_inputs(backbone, different, max_tokens=64).pooled
    assert pooled is not None, "a frozen backbone gives one vector per name"
    vectors = pooled.numpy().astype(np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    place = {name: at for at, name in enumerate(different)}
    found: npt.NDArray[np.float32] = vectors[[place[name] for name in names]]
    return found


def names_of_codes(instances: Instances, kind: Kind, codes: Sequence[str]) -> list[str]:
    """Return the readable names of codes; a code without one is its own name."""
    known = instances.cohort.names(kind)
    return [known.get(code) or code for code in codes]
