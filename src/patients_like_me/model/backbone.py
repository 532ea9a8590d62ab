"""The backbone: a language model that turns a prompt into one vector, cut where its training begins.

The frozen lower part always runs without dropout, in training too: its output depends on the prompt alone. So it can
be computed once and kept (``hidden_state_cache``), and a run with the cache equals a run without it.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import torch
from torch import Tensor, nn

from patients_like_me.model.devices import autocast, autocast_format
from patients_like_me.model.layer_stack import LayerStack, mean_over_real_tokens
from patients_like_me.model.settings import BackboneSettings, Precision

#: Where the trained part begins: at the token ids, at hidden states between two layers, or after the pooling.
Level = Literal["tokens", "hidden", "pooled"]

#: A tokenizer keeps the length at which it cuts: of two threads, one would cut where the other said.
_ONE_LENGTH_AT_A_TIME: Final = threading.Lock()

#: The settings of a Hugging Face configuration that change what the same weights compute.
_COMPUTING_FIELDS = (
    "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "hidden_act", "hidden_activation", "layer_norm_eps", "norm_eps", "rms_norm_eps", "rope_parameters",
    "sliding_window", "layer_types", "pad_token_id", "query_pre_attn_scalar", "attn_logit_softcapping",
)  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """Some prompts, padded to the longest of them, at one level; ``rows`` says which instances they are.

    ``values`` is [B, L] token ids, [B, L, W] hidden states or [B, W] pooled vectors; ``mask`` [B, L] marks real tokens.
    """

    level: Level
    values: Tensor
    mask: Tensor
    rows: Tensor

    def to(self, device: torch.device | str) -> Batch:
        """Move the batch to a device."""
        return Batch(self.level, self.values.to(device), self.mask.to(device), self.rows.to(device))

    def padded_to(self, length: int) -> Batch:
        """Return the same prompts, padded as in a batch with a longer one."""
        more = length - self.mask.shape[1]
        if self.level == "pooled" or more <= 0:
            return self
        values = nn.functional.pad(self.values, (0, more) if self.level == "tokens" else (0, 0, 0, more))
        return Batch(self.level, values, nn.functional.pad(self.mask, (0, more)), self.rows)


class Backbone(nn.Module):
    """A language model with its tokenizer; only ``trained_parameters`` learn.

    ``lower`` and ``upper`` are the two parts around the cut: ``upper(lower(input_ids, mask), mask)`` are the token
    states of the whole model, and ``forward`` pools them.
    """

    def __init__(
        self,
        stack: LayerStack,
        tokenizer: Any,
        settings: BackboneSettings,
        *,
        frozen_layers: int,
        weights_sha256: str,
    ) -> None:
        super().__init__()
        self.stack = stack
        self.tokenizer = tokenizer
        self.settings = settings
        self.frozen_layers = frozen_layers
        self.weights_sha256 = weights_sha256
        self.tokenizer_sha256 = hash_of_tokenizer(tokenizer)
        self.train(False)

    @property
    def name(self) -> str:
        """Return the name it was asked for by."""
        return self.settings.name

    @property
    def depth(self) -> int:
        """Return the number of layers."""
        return len(self.stack.layers)

    @property
    def width(self) -> int:
        """Return the number of values of a pooled vector."""
        return self.stack.width

    @property
    def level(self) -> Level:
        """Return where the trained part begins, and so what can be computed once and kept."""
        if self.frozen_layers == self.depth:
            return "pooled"
        return "tokens" if self.frozen_layers == 0 else "hidden"

    @property
    def device(self) -> torch.device:
        """Return the device that holds the weights."""
        return next(self.stack.parameters()).device

    @property
    def max_tokens(self) -> int:
        """Return the longest prompt that the model can read."""
        longest = int(getattr(self.stack.config, "max_position_embeddings", 512))
        # RoBERTa's first positions belong to padding.
        return longest - 2 if self.stack.family.positions == "table_after_padding" else longest

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that learn, by name."""
        return {name: parameter for name, parameter in self.stack.named_parameters() if parameter.requires_grad}

    def lower(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Compute the hidden states [B, L, W] that enter the trained part; no gradient, no dropout."""
        with torch.no_grad():
            hidden = self.stack.embed(input_ids, mask)
            return self.stack.run(hidden, mask, 0, self.frozen_layers)

    def upper(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Compute the token states [B, L, W] from the hidden states below the trained part."""
        return self.stack.finish(self.stack.run(hidden, mask, self.frozen_layers, self.depth))

    def forward(self, batch: Batch) -> Tensor:
        """Turn a batch of any level into one vector per prompt: [B, W], the mean over its real tokens."""
        if batch.level == "pooled":
            return batch.values
        if batch.level == "tokens":
            hidden = self.lower(batch.values, batch.mask)
        else:
            hidden = batch.values.to(next(self.stack.embeddings.parameters()).dtype)
        return mean_over_real_tokens(self.upper(hidden, batch.mask), batch.mask)

    def pool(self, batch: Batch, precision: Precision = "auto") -> Tensor:
        """Return the same as :meth:`forward`, the trained part computed in ``precision``.

        The frozen part is computed outside of autocast, as kept hidden states are: with and without a cache a batch is
        the same.
        """
        if batch.level == "tokens" and self.level == "hidden":
            batch = Batch("hidden", self.lower(batch.values, batch.mask), batch.mask, batch.rows)
        with autocast(self.device, precision):
            pooled: Tensor = self(batch)
        return pooled

    def keep_in(self, precision: Precision) -> None:
        """Keep weights in the half precision in which :meth:`pool` multiplies them, for who reads and never trains.

        Every forward pass would convert the weights of all its linear maps; the results are the same to the last bit.
        Adapters, and the frozen part, which computes outside of autocast, stay as they are.
        """
        half = autocast_format(self.device, precision)
        if half is None or self.level == "pooled":
            return
        for layer in self.stack.layers[self.frozen_layers :]:
            if any("lora_" in name for name, _ in layer.named_modules()):
                continue
            for module in layer.modules():
                if type(module) is nn.Linear:
                    module.to(half)

    def train(self, mode: bool = True) -> Self:
        """Switch dropout of the trained part; the frozen part below never drops anything."""
        super().train(mode)
        self.stack.embeddings.eval()
        for layer in self.stack.layers[: self.frozen_layers]:
            layer.eval()
        return self

    def token_ids(self, texts: Sequence[str], *, max_tokens: int) -> list[list[int]]:
        """Return the token ids of each text, special tokens included, at most ``max_tokens`` of them."""
        if not texts:
            return []
        return self._tokenized(texts, min(max_tokens, self.max_tokens))

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, uncut: what ``tasks.prompts.write_prompts`` asks for."""
        return [len(ids) for ids in self.uncut_token_ids(texts)]

    def uncut_token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, special tokens included, however many they are."""
        return self._tokenized(texts, None) if texts else []

    def _tokenized(self, texts: Sequence[str], longest: int | None) -> list[list[int]]:
        with _ONE_LENGTH_AT_A_TIME:
            encoded = self.tokenizer(
                list(texts), truncation=longest is not None, max_length=longest, padding=False,
                return_attention_mask=False, return_token_type_ids=False, verbose=False,
            )  # fmt: skip
        ids: list[list[int]] = encoded["input_ids"]
        return ids


def hash_of_weights(stack: LayerStack) -> str:
    """Return the SHA-256 of all weights and of the settings that change what they compute."""
    digest = hashlib.sha256()
    fields = {name: getattr(stack.config, name, None) for name in _COMPUTING_FIELDS}
    digest.update(json.dumps(fields, sort_keys=True, default=str).encode())
    for name, tensor in sorted(stack.model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def hash_of_tokenizer(tokenizer: Any) -> str:
    """Return the SHA-256 of a tokenizer's rules, without the cutting and padding that calls set and reset."""
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    rules["truncation"] = rules["padding"] = None
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()
