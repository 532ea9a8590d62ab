"""The settings of a training: everything that decides its result, and the presets that name sets of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from patients_like_me.graph.settings import GraphSettings
from patients_like_me.model.settings import (
    BackboneSettings,
    GraphDevice,
    GraphNetworkSettings,
    Precision,
    ProjectionKind,
)
from patients_like_me.settings import checked, merged, preset_values
from patients_like_me.training.strategies import STRATEGIES, Strategy, StrategyName


class TrainingSettings(BaseModel):
    """One training. The defaults are the preset ``paper``.

    >>> TrainingSettings(strategy="vem").batch_size
    32
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategy: StrategyName = Field("vem", description="how language model and graph network are trained")
    backbone: BackboneSettings = BackboneSettings()
    graph_network: GraphNetworkSettings = GraphNetworkSettings()
    graph: GraphSettings = GraphSettings()
    embedding_width: int = Field(128, ge=1, description="width of a patient embedding")
    projection: ProjectionKind = Field("linear", description="from the backbone's width to the embedding's")
    max_tokens: int = Field(512, ge=16, description="token budget of a prompt")
    batch_size: int = Field(32, ge=1, description="prompts per step of the language model")
    accumulation: int = Field(1, ge=1, description="batches whose gradients are added before a step")
    backbone_rate: float = Field(1e-5, gt=0, le=100, description="learning rate of the backbone")
    rate: float = Field(1e-3, gt=0, le=100, description="learning rate of everything else")
    weight_decay: float = Field(1e-2, ge=0, le=100, description="AdamW's weight decay")
    start: Literal["plain", "informed"] = Field(
        "plain",
        description=(
            "first weights at random, or informed by the training split: classifiers at its label rates, embeddings "
            "with mean 0 and variance 1"
        ),
    )
    warmup: float = Field(0.1, ge=0, lt=1, description="share of the steps over which the learning rates rise")
    epochs: int = Field(10, ge=1, description="maximum number of epochs of the language model")
    patience: int = Field(5, ge=1, description="epochs without a better validation score before stopping")
    warm_epochs: int = Field(1, ge=0, description="vem, alternating, end_to_end: epochs through the own head first")
    graph_loss: float = Field(
        1.0, ge=0, le=1e6, description="E-step: weight of the supervised loss through the frozen graph"
    )
    head_loss: float = Field(0.0, ge=0, le=1e6, description="E-step: weight of the supervised loss of the own head")
    coupling: float = Field(
        0.0, ge=0, le=1e6, description="E-step: weight of the graph's sampled labels, scored by the head"
    )
    mc_samples: Annotated[int, Field(ge=1)] | Literal["exact"] = Field(
        1, description="samples of the coupling, or its closed form"
    )
    graph_refresh: int = Field(1, ge=1, description="steps for which one gradient of the graph is used (1: exact)")
    store_refresh: Literal["never", "epoch"] = Field(
        "epoch",
        description=(
            "before an M-step read all training instances again (about a third more time), or use what the batches "
            "wrote; with references 'bank' they are always read again"
        ),
    )
    allow_empty_graph: bool = Field(
        False, description="train a strategy with a graph even where no training instance has a neighbour"
    )
    graph_start: Literal["last", "head"] = Field(
        "last",
        description=(
            "M-step: start from the last graph network, or from the language model's own answer where that validates "
            "better (needs graph_network.skip=concat)"
        ),
    )
    alone_loss: float = Field(
        0.0,
        ge=0,
        lt=1,
        description=(
            "share of the graph network's loss in which every training instance is predicted without its neighbours, "
            "as a patient without a reference is"
        ),
    )
    graph_steps: int = Field(200, ge=1, description="maximum number of full-batch steps of one M-step")
    graph_check: int = Field(10, ge=1, description="steps of the M-step between two checks of the validation loss")
    graph_patience: int = Field(5, ge=1, description="checks without a lower loss before the M-step ends")
    distillation: float = Field(0.5, ge=0, le=1, description="alternating: share of the other part's soft labels")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto", description="where the backbone computes; projection and head, which are small, stay on the CPU"
    )
    graph_device: GraphDevice = Field(
        "auto",
        description=(
            "where the graph network computes; auto: on the card of the backbone where the states of all instances "
            "fit next to it (the graph itself is sent in blocks if it does not), else on the CPU"
        ),
    )
    precision: Precision = Field("auto", description="half precision only where the device is faster with it")
    cache_format: Literal["float32", "float16"] = Field("float32", description="how frozen hidden states are kept")
    seed: int = Field(0, ge=0, description="decides first weights, order of batches, dropout and samples")

    @model_validator(mode="after")
    def _parts_fit_together(self) -> TrainingSettings:
        if self.chosen_strategy.needs_e_step_loss and not (self.graph_loss or self.head_loss or self.coupling):
            raise ValueError("graph_loss, head_loss and coupling are all 0: the language model would learn nothing")
        if self.graph_start == "head" and self.graph_network.skip != "concat":
            raise ValueError("graph_start 'head' needs graph_network.skip 'concat': without it no head fits the graph")
        if self.precision == "float16":
            raise ValueError(
                "precision 'float16' would need its gradients scaled, which is not done here: small ones would become "
                "0; use bfloat16, which needs no scaling, or float32"
            )
        if self.backbone.dtype == "float16" and self.backbone.trainable_layers != 0:
            raise ValueError(
                "backbone.dtype 'float16' cannot be trained: gradients would become 0; use bfloat16 or float32, or "
                "freeze the backbone (backbone.trainable_layers=0)"
            )
        return self

    @property
    def chosen_strategy(self) -> Strategy:
        """The strategy itself, of which ``strategy`` is the name."""
        return STRATEGIES[self.strategy]

    @property
    def warm_up_epochs(self) -> int:
        """The epochs through the own head before the strategy's own rule; the last epoch is never one of them."""
        return min(self.warm_epochs, self.epochs - 1)

    @property
    def uses_graph(self) -> bool:
        """Tell whether predictions come from the graph network."""
        return self.chosen_strategy.uses_graph

    @property
    def refreshes_store(self) -> bool:
        """Tell whether the training instances are read again after every epoch.

        With references ``bank`` evaluated instances receive from them, so their embeddings must be the current ones.
        """
        return self.uses_graph and (self.store_refresh == "epoch" or self.graph.references == "bank")


def settings_of_preset(name: str, /, **changes: Any) -> TrainingSettings:
    """Return the training settings of a preset, with changes; nested settings are changed key by key.

    >>> settings_of_preset("clinical", strategy="lm_only", graph={"tau": 5}).graph.self_loop
    'own_codes'
    """
    return checked(TrainingSettings, **merged(preset_values(name)["training"], changes))
