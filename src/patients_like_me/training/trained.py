"""What a training leaves behind: the model with its bank, ready to embed and to predict patients it has never seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from patients_like_me.graph.bank import Bank
from patients_like_me.model.embedding import embed_prompts
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.prompt_inputs import prepare_inputs
from patients_like_me.model.propagation import FixedPropagation
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.prompts import write_prompts
from patients_like_me.training.preparation import place_backbone
from patients_like_me.training.settings import TrainingSettings


@dataclass(frozen=True)
class TrainedModel:
    """A trained model, the settings of its training, and the bank of labelled training instances."""

    model: PatientsLikeMeModel
    settings: TrainingSettings
    bank: Bank

    @classmethod
    def load(cls, folder: Path, settings: TrainingSettings) -> TrainedModel:
        """Read a model and its bank from a run folder, the backbone on the device of the settings."""
        model = PatientsLikeMeModel.from_pretrained(folder / "model")
        place_backbone(model, settings)
        return cls(model, settings, Bank.load(folder / "bank"))

    def save(self, folder: Path) -> None:
        """Write model and bank into a run folder."""
        self.model.save_pretrained(folder / "model")
        self.bank.save(folder / "bank")

    def embed(self, instances: Instances, rows: Sequence[int] | None = None) -> Tensor:
        """Return the embeddings of instances, or of some of their rows, as training computes them."""
        backbone = self.model.backbone
        budget = min(self.settings.max_tokens, backbone.max_tokens)
        prompts = write_prompts(instances, backbone.count_tokens, budget=budget, rows=rows)
        inputs = prepare_inputs(backbone, prompts.texts, max_tokens=budget)
        return embed_prompts(self.model, inputs, precision=self.settings.precision)

    def logits(self, instances: Instances) -> Tensor:
        """Return the logits of instances, each linked to the bank and to nobody else.

        A prediction does not depend on who else is predicted, and no instance is linked to one of the same patient.
        """
        return self.logits_of_embeddings(instances, self.embed(instances))

    @torch.no_grad()
    def logits_of_embeddings(self, instances: Instances, embeddings: Tensor) -> Tensor:
        """Return the same from the embeddings of the instances."""
        self.model.set_training(language=False, graph=False)
        if not self.settings.uses_graph:
            return self.model.language_logits(embeddings)
        bank = torch.from_numpy(self.bank.embeddings)
        propagation = FixedPropagation.of_graph(self.bank.extended_graph(instances))
        return self.model.graph_logits(torch.cat([bank, embeddings]), propagation)[len(bank) :]
