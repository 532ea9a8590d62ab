"""The embeddings of prompts by a language model that is not trained: one vector per instance, computed once."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.model.settings import BackboneSettings
from patients_like_me.tasks.instances import Instances

Embeddings = npt.NDArray[np.float32]

#: The length of every embedding: its entries are then of the order of a code's 0 and 1, and penalties treat both alike.
LENGTH: Final = 5.0
#: The prompts of so few instances at once are not remembered.
FEW: Final = 32


class FrozenBackbone:
    """A frozen language model that remembers the prompts it has read, for the fits on parts of the training."""

    def __init__(self, settings: BackboneSettings) -> None:
        from patients_like_me.model.devices import best_device
        from patients_like_me.model.loading import load_backbone

        self.settings = settings
        self.backbone: Any = load_backbone(settings.model_copy(update={"trainable_layers": 0, "lora_layers": 0}))
        self.backbone.to(best_device())
        self._kept: dict[tuple[str, int], Embeddings] = {}

    def embed(
        self, instances: Instances, max_tokens: int, cache: Path | None = None, *, layers_to_train: int = 0
    ) -> Embeddings:
        """Return the embeddings [N, width], each of the same length; with a cache they are kept for other processes.

        Where the last ``layers_to_train`` layers are to be trained afterwards, the states below them are kept instead,
        so that the training finds them and no prompt is read twice.
        """
        from patients_like_me.tasks.prompts import write_prompts

        budget = min(max_tokens, self.backbone.max_tokens)
        texts = write_prompts(instances, self.backbone.count_tokens, budget=budget).texts
        unread = list(dict.fromkeys(text for text in texts if (text, budget) not in self._kept))
        if unread:
            vectors = self._read(unread, budget, cache, layers_to_train)
            lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            scaled = (LENGTH * vectors / lengths).astype(np.float32)
            read = {(text, budget): vector for text, vector in zip(unread, scaled, strict=True)}
            if len(texts) <= FEW:
                # Single newcomers, as a server reads them without end: neither vectors nor texts stay.
                return np.stack([(read if (text, budget) in read else self._kept)[text, budget] for text in texts])
            self._kept |= read
        found = [self._kept[text, budget] for text in texts]
        return np.stack(found) if found else np.zeros((0, self.backbone.width), np.float32)

    def _read(self, texts: list[str], budget: int, cache: Path | None, layers_to_train: int) -> Embeddings:
        from patients_like_me.model.hidden_state_cache import HiddenStateCache
        from patients_like_me.model.prompt_inputs import prepare_inputs

        kept = None if cache is None else HiddenStateCache(cache)
        if kept is not None and layers_to_train:
            from patients_like_me.systems.trained_embeddings import tuned

            return tuned(self.settings.model_copy(update={"trainable_layers": layers_to_train})).untrained(
                texts, budget, kept
            )
        inputs = prepare_inputs(self.backbone, texts, max_tokens=budget, cache=kept)
        assert inputs.level == "pooled", "a frozen backbone gives one vector per prompt"
        vectors: Embeddings = inputs.batch(np.arange(len(texts))).values.numpy()
        return vectors


@lru_cache(maxsize=1)
def _frozen(settings: BackboneSettings) -> FrozenBackbone:
    return FrozenBackbone(settings)


def embeddings_of(
    instances: Instances,
    settings: BackboneSettings,
    max_tokens: int,
    cache: Path | None = None,
    *,
    layers_to_train: int = 0,
) -> Embeddings:
    """Return the embeddings of the instances' prompts; they see what a prompt may show and nothing else."""
    return _frozen(settings).embed(instances, max_tokens, cache, layers_to_train=layers_to_train)
