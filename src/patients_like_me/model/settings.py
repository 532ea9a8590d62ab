"""The settings of the joint model: the language model, the graph network, and how they are put together.

Free of torch, so that settings can be read and checked at once.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

#: The paper tunes the last six layers of an encoder.
PAPER_TRAINABLE_LAYERS = 6

Precision = Literal["auto", "float32", "bfloat16", "float16"]
ProjectionKind = Literal["linear", "mlp"]
GraphDevice = Literal["auto", "cpu", "cuda"]


class BackboneSettings(BaseModel):
    """Everything that decides how a language model is loaded and trained.

    >>> BackboneSettings(name="minilm-2", trainable_layers=1).lora_rank
    8
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        "minilm", description="a known backbone, a folder, a GGUF file or a Hugging Face name in the local cache"
    )
    trainable_layers: int | None = Field(
        None, ge=0, description="encoders: how many of the last layers are tuned; default: six, or all if fewer"
    )
    lora_rank: int = Field(8, ge=1, description="decoders: rank of the low-rank adapters on q, k, v and o")
    lora_alpha: float = Field(16, gt=0, description="decoders: scale of the adapters")
    lora_dropout: float = Field(0.1, ge=0, lt=1, description="decoders: dropout before the adapters")
    lora_layers: int | None = Field(
        None, ge=0, description="decoders: how many of the last layers get adapters; default: all, as in the paper"
    )
    attention: Literal["sdpa", "eager"] = Field("sdpa", description="torch's fused attention, or the plain one")
    attention_dropout: float | None = Field(
        None, ge=0, lt=1, description="dropout of attention weights; default: the backbone's own; 0 is faster on a CPU"
    )
    dropout: float | None = Field(
        None,
        ge=0,
        lt=1,
        description=(
            "dropout of hidden states in the trained layers; default: the backbone's own (BERT 0.1, ModernBERT and "
            "decoders 0)"
        ),
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="number format of the weights")
    gradient_checkpointing: bool = Field(
        False, description="recompute layers in the backward pass: less memory, about a third more time"
    )


class GraphNetworkSettings(BaseModel):
    """The shape of the graph network; the defaults are the paper's, except dropout, which it does not state."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: int = Field(3, ge=1, description="number of graph convolutions: how many hops information travels")
    width: int = Field(128, ge=1, description="number of values per node and layer")
    dropout: float = Field(0.1, ge=0, lt=1, description="share of values dropped after each layer in training")
    skip: Literal["none", "concat"] = Field(
        "none", description="concat: the classifier also sees the node's own embedding"
    )


class ModelSettings(BaseModel):
    """Everything that decides the shape of the joint model.

    >>> ModelSettings(outputs=1).embedding_width
    128
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: BackboneSettings = BackboneSettings()
    graph_network: GraphNetworkSettings = GraphNetworkSettings()
    embedding_width: int = Field(128, ge=1, description="number of values of a patient embedding o_n")
    projection: ProjectionKind = Field("linear", description="how the backbone's width becomes the embedding's")
    outputs: int = Field(ge=1, description="logits per instance: 1 for a binary task, else one per class or code")
