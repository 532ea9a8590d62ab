"""A language model with one linear layer on top, as a network of the epoch loop: GLEM's first part, LEADER's teacher.

Only what learns is part of the network's state: the tuned layers or adapters and the last layer. The frozen weights are
read again from the backbone, whose hash is kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from patients_like_me.errors import PlmError
from patients_like_me.model.backbone import Backbone, Batch
from patients_like_me.model.devices import best_device
from patients_like_me.model.embedding import read_prompts
from patients_like_me.model.hidden_state_cache import HiddenStateCache
from patients_like_me.model.loading import load_backbone
from patients_like_me.model.prompt_inputs import PromptInputs, prepare_inputs
from patients_like_me.model.settings import BackboneSettings, Precision
from patients_like_me.tasks.instances import Instances, Rows
from patients_like_me.tasks.prompts import write_prompts


class LanguageReader(nn.Module):
    """logits = W mean(token states) (+ b)."""

    def __init__(self, backbone: Backbone, outputs: int, *, bias: bool = True, precision: Precision = "auto") -> None:
        super().__init__()
        self.tuned = nn.ParameterDict(
            {name.replace(".", "/"): weight for name, weight in backbone.trained_parameters().items()}
        )
        self.head = nn.Linear(backbone.width, outputs, bias=bias)
        # In a tuple the backbone is not a submodule: its frozen weights stay out of what is kept.
        self._held = (backbone,)
        self.precision = precision

    @property
    def backbone(self) -> Backbone:
        """The language model."""
        return self._held[0]

    def pool(self, batch: Batch) -> Tensor:
        """Return one vector per prompt, [B, width]."""
        return self.backbone.pool(batch, self.precision).to(self.head.weight)

    def forward(self, batch: Batch) -> Tensor:
        """Return logits [B, outputs]."""
        logits: Tensor = self.head(self.pool(batch))
        return logits

    def train(self, mode: bool = True) -> Self:
        """Switch the dropout of the trained layers."""
        super().train(mode)
        self.backbone.train(mode)
        return self

    def logits_of(self, inputs: PromptInputs, rows: Rows) -> Tensor:
        """Return the logits of some prompts; without training they are read in batches of similar length."""
        if self.training:
            logits: Tensor = self(inputs.batch(rows, device=self.backbone.device))
            return logits
        return self.head(self.vectors(inputs, rows))  # type: ignore[no-any-return]

    def vectors(self, inputs: PromptInputs, rows: Rows | None = None) -> Tensor:
        """Return the vectors of some prompts, without dropout, on the CPU: [rows, width]."""
        was_training = self.training
        self.eval()
        found = read_prompts(self.backbone, inputs, rows, precision=self.precision)
        self.train(was_training)
        return found


def loaded_backbone(settings: BackboneSettings, seed: int, expected_hash: str | None = None) -> Backbone:
    """Load a backbone onto the best device; other weights than those of the training are refused."""
    backbone = load_backbone(settings, seed=seed)
    if expected_hash is not None and backbone.weights_sha256 != expected_hash:
        raise PlmError(
            f"the backbone '{settings.name}' has other weights than in the training",
            remedy="restore the earlier weights, or train again",
        )
    return backbone.to(best_device())


def prompts_of(
    backbone: Backbone, instances: Instances, max_tokens: int, cache: Path | None = None, **more: Any
) -> PromptInputs:
    """Write and tokenise the prompts of instances; frozen layers are computed once where there is a cache."""
    budget = min(max_tokens, backbone.max_tokens)
    texts = write_prompts(instances, backbone.count_tokens, budget=budget).texts
    kept = None if cache is None else HiddenStateCache(cache)
    return prepare_inputs(backbone, texts, max_tokens=budget, cache=kept, **more)
