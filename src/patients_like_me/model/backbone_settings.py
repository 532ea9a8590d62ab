"""The settings of a backbone: which language model, and which part of it is trained."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

#: The paper tunes the last six layers of an encoder.
PAPER_TRAINABLE_LAYERS = 6


class BackboneSettings(BaseModel):
    """Everything that decides how a language model is loaded and trained.

    >>> BackboneSettings(name="minilm-2", trainable_layers=1).lora_rank
    8
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("minilm", description="a preset, a folder, a GGUF file or a Hugging Face name in the local cache")
    trainable_layers: int | None = Field(
        None,
        ge=0,
        description="encoders: the last layers that are tuned; not given: six, or all where there are fewer",
    )
    lora_rank: int = Field(8, ge=1, description="decoders: rank of the low-rank adapters on q, k, v and o")
    lora_alpha: float = Field(16, gt=0, description="decoders: scale of the adapters")
    lora_dropout: float = Field(0.1, ge=0, lt=1, description="decoders: dropout before the adapters")
    lora_layers: int | None = Field(
        None, ge=0, description="decoders: the last layers that get adapters; not given: all, as in the paper"
    )
    attention: Literal["sdpa", "eager"] = Field("sdpa", description="torch's fused attention, or the plain one")
    attention_dropout: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="dropout of attention weights; not given: the backbone's own; 0 is faster on a CPU",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="number format of the weights")
    gradient_checkpointing: bool = Field(
        False, description="recompute layers in the backward pass: less memory, about a third more time"
    )
