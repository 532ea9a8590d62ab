"""Any supported transformer as three steps: embed, run some layers, finish; so that it can be cut between layers.

Attention is always bidirectional: a token sees all real tokens of its prompt, in encoders and decoders alike, and
never a padding token. Positions are counted from the first real token, so padding on either side is invisible.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from patients_like_me.model.families import Family

#: Added to the score of a hidden token. Finite in every number format, so a row with all keys hidden stays finite;
#: its exponential is exactly zero beside any real score.
_HIDDEN_SCORE = -30_000.0


class LayerStack(nn.Module):
    """The embeddings, layers and last norm of one Hugging Face model.

    Shapes: B prompts, L tokens, W the width of the model.

    * ``embed``: input_ids [B, L], mask [B, L] -> hidden [B, L, W]
    * ``run``: hidden [B, L, W], mask [B, L] -> hidden [B, L, W] after the layers ``first`` to ``last - 1``
    * ``finish``: hidden [B, L, W] -> token states [B, L, W]
    """

    def __init__(self, model: nn.Module, family: Family, *, gradient_checkpointing: bool = False) -> None:
        super().__init__()
        self.model = model
        self.family = family
        self.gradient_checkpointing = gradient_checkpointing
        if getattr(model, "pooler", None) is not None:
            # The pooler reads the first token only; pooling here is the mean over real tokens.
            model.pooler = None  # type: ignore[assignment]

    @property
    def config(self) -> Any:
        """Return the Hugging Face configuration."""
        return self.model.config

    @property
    def embeddings(self) -> nn.Module:
        """Return the module that turns token ids into vectors."""
        return self.model.get_submodule(self.family.embeddings)

    @property
    def layers(self) -> nn.ModuleList:
        """Return the transformer layers, lowest first."""
        return cast(nn.ModuleList, self.model.get_submodule(self.family.layers))

    @property
    def final_norm(self) -> nn.Module | None:
        """Return the norm after the last layer, for the families that have one."""
        return None if self.family.final_norm is None else self.model.get_submodule(self.family.final_norm)

    @property
    def width(self) -> int:
        """Return the number of values per token."""
        return int(self.config.hidden_size)

    def embed(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Turn token ids into the vectors that enter the first layer."""
        if self.family.positions == "table":
            return cast(Tensor, self.embeddings(input_ids=input_ids, position_ids=_positions(mask)))
        if self.family.positions == "table_after_padding":
            # RoBERTa numbers real tokens from the padding id + 1 on and gives padding the padding id itself.
            padding_id = int(self.embeddings.padding_idx)  # type: ignore[arg-type]
            positions = (_positions(mask) + 1) * mask + padding_id
            return cast(Tensor, self.embeddings(input_ids=input_ids, position_ids=positions))
        return cast(Tensor, self.embeddings(input_ids))

    def run(self, hidden: Tensor, mask: Tensor, first: int, last: int) -> Tensor:
        """Run the layers ``first`` to ``last - 1``."""
        arguments: dict[str, dict[str, Any]] = {}
        for index in range(first, last):
            layer = self.layers[index]
            layer_type = self._layer_type(index)
            if layer_type not in arguments:
                arguments[layer_type] = self._layer_arguments(layer_type, hidden, mask)
            if self.gradient_checkpointing and torch.is_grad_enabled() and layer.training:
                output = checkpoint(layer, hidden, use_reentrant=False, **arguments[layer_type])
            else:
                output = layer(hidden, **arguments[layer_type])
            hidden = output[0] if isinstance(output, tuple) else output
        return hidden

    def finish(self, hidden: Tensor) -> Tensor:
        """Apply the norm after the last layer where the family has one."""
        return hidden if self.final_norm is None else cast(Tensor, self.final_norm(hidden))

    def _layer_type(self, index: int) -> str:
        if self.family.window_in_every_layer:
            return "full_attention" if self._window() is None else "sliding_attention"
        types = getattr(self.config, "layer_types", None)
        return "full_attention" if types is None else str(types[index])

    def _window(self) -> int | None:
        window = getattr(self.config, "sliding_window", None)
        return None if window is None else int(window)

    def _layer_arguments(self, layer_type: str, hidden: Tensor, mask: Tensor) -> dict[str, Any]:
        window = self._window() if layer_type == "sliding_attention" else None
        # Decoder layers believe they are causal whenever there is no mask; this tells them otherwise.
        arguments: dict[str, Any] = {
            "attention_mask": _attention_mask(mask, window, hidden.dtype),
            "is_causal": False,
        }
        if self.family.positions == "rotary":
            arguments["position_embeddings"] = self.model.rotary_emb(hidden, _positions(mask))  # type: ignore[operator]
        elif self.family.positions == "rotary_by_layer_type":
            arguments["position_embeddings"] = self.model.rotary_emb(  # type: ignore[operator]
                hidden, _positions(mask), layer_type
            )
        return arguments


def mean_over_real_tokens(states: Tensor, mask: Tensor) -> Tensor:
    """Average the token states [B, L, W] over the real tokens of each prompt: [B, W].

    >>> states = torch.tensor([[[1.0], [3.0], [99.0]]])
    >>> mean_over_real_tokens(states, torch.tensor([[True, True, False]]))
    tensor([[2.]])
    """
    # Sums of half-precision numbers lose digits; the mean is formed in float32 at least.
    states = states.to(torch.promote_types(states.dtype, torch.float32))
    real = mask.unsqueeze(-1).to(states.dtype)
    return (states * real).sum(dim=1) / real.sum(dim=1).clamp_min(1.0)


def _positions(mask: Tensor) -> Tensor:
    """Number the real tokens of each prompt from 0: [1, L] where all prompts begin at the left, else [B, L]."""
    if bool(mask[:, 0].all()):
        return torch.arange(mask.shape[1], device=mask.device).unsqueeze(0)
    return (mask.long().cumsum(dim=1) - 1).clamp_min(0)


def _attention_mask(mask: Tensor, window: int | None, dtype: torch.dtype) -> Tensor | None:
    """Return what is added to the attention scores, [B, 1, L, L], or None where every token sees every token."""
    batch, length = mask.shape
    if window is not None and length <= window + 1:
        window = None
    if window is None and bool(mask.all()):
        return None
    visible = mask[:, None, None, :]
    if window is not None:
        place = torch.arange(length, device=mask.device)
        visible = visible & ((place[:, None] - place[None, :]).abs() <= window)
    scores = torch.zeros(visible.shape, dtype=dtype, device=mask.device).masked_fill(~visible, _HIDDEN_SCORE)
    return scores.expand(batch, 1, length, length)
