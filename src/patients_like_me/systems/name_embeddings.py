"""Vectors of names of codes and other entities by a language model that is not trained. No patient is involved.

The common part of all vectors, which tells nothing apart, is taken away. A name without a word, such as a bare code,
says nothing to a language model, and two of them would look alike: it gets a random vector of its own, and is counted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.model.settings import BackboneSettings
from patients_like_me.records.cohort import Kind
from patients_like_me.tasks.instances import Instances

if TYPE_CHECKING:
    from patients_like_me.model.backbone import Backbone


@lru_cache(maxsize=1)
def _frozen(settings: BackboneSettings) -> Any:
    from patients_like_me.model.devices import best_device
    from patients_like_me.model.loading import load_backbone

    return load_backbone(settings.model_copy(update={"trainable_layers": 0, "lora_layers": 0})).to(best_device())


def frozen_backbone(settings: BackboneSettings, expected_hash: str | None = None) -> Backbone:
    """Return the language model that reads texts here; other weights than those of the training are refused."""
    backbone: Backbone = _frozen(settings)
    if expected_hash is not None and backbone.weights_sha256 != expected_hash:
        raise PlmError(
            f"the backbone '{settings.name}' has other weights than in the training",
            remedy="restore the earlier weights, or train again",
        )
    return backbone


def name_embeddings(names: Sequence[str], settings: BackboneSettings) -> npt.NDArray[np.float32]:
    """Return one vector of length 1 per name, [names, width of the backbone]."""
    from patients_like_me.model.prompt_inputs import prepare_inputs

    backbone = _frozen(settings)
    different = [name for name in dict.fromkeys(names) if not is_wordless(name)]
    known: dict[str, npt.NDArray[Any]] = {}
    if different:
        pooled = prepare_inputs(backbone, different, max_tokens=64).pooled
        assert pooled is not None, "a frozen backbone gives one vector per name"
        vectors = pooled.double().numpy()
        known = dict(zip(different, vectors - vectors.mean(axis=0) if len(vectors) > 2 else vectors, strict=True))
    found = np.array([known[name] if name in known else _random_vector(name, backbone.width) for name in names])
    found = found.reshape(len(names), backbone.width)
    lengths = np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
    normed: npt.NDArray[np.float32] = (found / lengths).astype(np.float32)
    return normed


def text_vectors(texts: Sequence[str], settings: BackboneSettings, max_tokens: int) -> npt.NDArray[np.float32]:
    """Return the plain vector of every text, [texts, width of the backbone], no matter what else is read."""
    from patients_like_me.model.prompt_inputs import prepare_inputs

    backbone = _frozen(settings)
    if not texts:
        return np.zeros((0, backbone.width), dtype=np.float32)
    pooled = prepare_inputs(backbone, list(texts), max_tokens=max_tokens).pooled
    assert pooled is not None, "a frozen backbone gives one vector per text"
    found: npt.NDArray[np.float32] = pooled.float().cpu().numpy()
    return found


def is_wordless(name: str) -> bool:
    """Tell whether a name has no word of two letters or more.

    >>> is_wordless("I50"), is_wordless("A10A"), is_wordless("sepsis")
    (True, True, False)
    """
    return re.search(r"[^\W\d_]{2,}", name) is None


def wordless_note(names: Sequence[str]) -> list[str]:
    """Say how many codes have no name, if any."""
    number = sum(map(is_wordless, names))
    return [f"{number:,} of {len(names):,} codes have no name and get random vectors"] if number else []


def _random_vector(name: str, width: int) -> npt.NDArray[np.float64]:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).normal(size=width)


def names_of_codes(instances: Instances, kind: Kind, codes: Sequence[str]) -> list[str]:
    """Return the readable names of codes; a code without one is its own name."""
    known = instances.cohort.names(kind)
    return [known.get(code) or code for code in codes]
