"""The joint model: theta, a language model that embeds one patient, and phi, a graph network over all of them.

* theta: backbone, projection to the width of the graph, and the language model's own head, q_theta(y_n | x_n);
* phi: graph convolutions and classifier, p_phi(y | O, A).

The E-step trains theta, the M-step phi; ``theta_parameters`` and ``phi_parameters`` never overlap.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from patients_like_me.model.backbone import Backbone, Batch
from patients_like_me.model.gcn import GraphNetwork
from patients_like_me.model.loading import load_backbone
from patients_like_me.model.propagation import Propagation
from patients_like_me.model.randomness import seeded
from patients_like_me.model.settings import ModelSettings, Precision, ProjectionKind


def projection(kind: ProjectionKind, inputs: int, outputs: int) -> nn.Module:
    """Return the map from the language model's width to that of the graph; it belongs to theta.

    The paper calls it a linear projection in one place and an MLP in another; both are here.
    """
    if kind == "linear":
        return nn.Linear(inputs, outputs)
    return nn.Sequential(nn.Linear(inputs, inputs), nn.GELU(), nn.Linear(inputs, outputs))


class PatientsLikeMeModel(nn.Module):
    """theta and phi in one object.

    First weights are drawn from ``seed``; the global generators stay untouched. Dropout in training draws from torch's
    global generator: run each step inside ``randomness.seeded``.
    """

    def __init__(self, backbone: Backbone, settings: ModelSettings, *, seed: int = 0) -> None:
        super().__init__()
        self.settings = settings
        self.backbone = backbone
        with seeded(seed, 1):
            self.projection = projection(settings.projection, backbone.width, settings.embedding_width)
            self.language_head = nn.Linear(settings.embedding_width, settings.outputs)
            self.graph_network = GraphNetwork(settings.embedding_width, settings.outputs, settings.graph_network)
        self.eval()

    @classmethod
    def build(cls, settings: ModelSettings, *, seed: int = 0) -> Self:
        """Load the backbone that the settings name and draw everything else from ``seed``."""
        return cls(load_backbone(settings.backbone, seed=seed), settings, seed=seed)

    @classmethod
    def from_pretrained(
        cls, folder: Path, *, backbone: Backbone | None = None, backbone_name: str | None = None
    ) -> PatientsLikeMeModel:
        """Load a model that ``save_pretrained`` wrote; the backbone must be the one it was trained from.

        ``backbone`` is one that is loaded already; ``backbone_name`` says where it is now, if it has moved.
        """
        from patients_like_me.model.persistence import load_model

        return load_model(folder, backbone=backbone, backbone_name=backbone_name)

    def save_pretrained(self, folder: Path) -> None:
        """Write the settings (JSON) and all that was trained (safetensors) into a folder."""
        from patients_like_me.model.persistence import save_model

        save_model(self, folder)

    @property
    def device(self) -> torch.device:
        """Return the device that holds the weights."""
        return self.language_head.weight.device

    def pool(self, batch: Batch, precision: Precision = "float32") -> Tensor:
        """Return what the backbone makes of a batch of prompts: one vector each, [B, backbone width]."""
        # The backbone may be on a graphics card; all that follows is small and stays where the head is.
        return self.backbone.pool(batch, precision).to(self.language_head.weight)

    def project(self, pooled: Tensor) -> Tensor:
        """Return the embeddings o [N, embedding_width] of pooled vectors; the projection has no dropout."""
        embeddings: Tensor = self.projection(pooled)
        return embeddings.float()

    def project_frozen(self, pooled: Tensor) -> Tensor:
        """Return the same as :meth:`project`, with a gradient in the pooled vectors but none in the projection."""
        weights = {name: value.detach() for name, value in self.projection.named_parameters()}
        embeddings: Tensor = torch.func.functional_call(self.projection, weights, (pooled,))
        return embeddings.float()

    def embed(self, batch: Batch) -> Tensor:
        """Return the embeddings o [B, embedding_width] of a batch of prompts, as float32."""
        return self.project(self.pool(batch))

    def language_logits(self, embeddings: Tensor) -> Tensor:
        """Return the logits of q_theta(y_n | x_n), the language model's own head, from embeddings o."""
        logits: Tensor = self.language_head(embeddings)
        return logits

    def graph_logits(self, embeddings: Tensor, graph: Propagation) -> Tensor:
        """Return the logits of p_phi for all nodes, from all embeddings O [N, embedding_width] and the graph."""
        # The network may be on a graphics card (``graph_device``); all that comes before and after stays where it is.
        logits: Tensor = self.graph_network(embeddings.to(self.graph_network.classifier.weight.device), graph)
        return logits.to(embeddings.device)

    def backbone_parameters(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters of the backbone (the paper's rate 1e-5), by name."""
        return {f"backbone.{name}": parameter for name, parameter in self.backbone.trained_parameters().items()}

    def language_head_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters of projection and language head (the rate of everything but the backbone), by name."""
        named = [("projection", self.projection), ("language_head", self.language_head)]
        return {f"{part}.{name}": value for part, module in named for name, value in module.named_parameters()}

    def theta_parameters(self) -> dict[str, nn.Parameter]:
        """Return all that the E-step trains, by name."""
        return self.backbone_parameters() | self.language_head_parameters()

    def phi_parameters(self) -> dict[str, nn.Parameter]:
        """Return all that the M-step trains, by name."""
        return {f"graph_network.{name}": value for name, value in self.graph_network.named_parameters()}

    def set_training(self, *, language: bool, graph: bool) -> None:
        """Switch dropout on or off, separately for theta and phi."""
        self.train(graph)
        for part in (self.backbone, self.projection, self.language_head):
            part.train(language)
