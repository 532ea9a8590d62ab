"""What a training leaves behind: the model with its bank, ready to embed and to predict patients it has never seen.

Of a finished run each part is read when it is first asked for, and once: to explain the instances of a split, their
written embeddings and the graph network are enough; newcomers and changed records need the backbone. They are embedded
in the same way as in training: the same device, the same precision, the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.graph.bank import Bank
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.model.bank_states import BankStates
from patients_like_me.model.batching import TOKENS_AT_ONCE
from patients_like_me.model.embedding import embed_prompts
from patients_like_me.model.gcn import GraphNetwork
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.persistence import load_graph_network
from patients_like_me.model.prompt_inputs import prepare_inputs
from patients_like_me.runs.run import Run
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.prompts import write_prompts
from patients_like_me.training.preparation import place_backbone
from patients_like_me.training.settings import TrainingSettings


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A trained model, the settings of its training, and the bank of labelled training instances.

    Make it by :meth:`of` or :meth:`load`; the functions say where each part comes from.
    """

    settings: TrainingSettings
    read_model: Callable[[], PatientsLikeMeModel]
    read_bank: Callable[[], Bank]
    read_network: Callable[[], GraphNetwork]

    @classmethod
    def of(cls, model: PatientsLikeMeModel, settings: TrainingSettings, bank: Bank) -> TrainedModel:
        """Take a model that was just trained, and its bank; its graph network comes back to the CPU."""
        model.graph_network.cpu()
        return cls(settings, lambda: model, lambda: bank, lambda: model.graph_network)

    @classmethod
    def load(cls, run: Run) -> TrainedModel:
        """Take the model of a finished run; settings of another version are refused."""
        settings, folder = _settings_of(run), run.folder / "model"

        def read_model() -> PatientsLikeMeModel:
            run.verify("model/")
            model = PatientsLikeMeModel.from_pretrained(folder)
            place_backbone(model, settings)
            return model

        def read_network() -> GraphNetwork:
            run.verify("model/")
            return load_graph_network(folder)

        return cls(settings, read_model, lambda: run.graph_bank, read_network)

    @cached_property
    def model(self) -> PatientsLikeMeModel:
        """The whole model, its backbone on the device of the settings."""
        return self.read_model()

    @cached_property
    def bank(self) -> Bank:
        """The training instances with their embeddings and outcomes."""
        return self.read_bank()

    @cached_property
    def graph_network(self) -> GraphNetwork:
        """The trained graph network, in evaluation mode; no backbone is needed for it."""
        return self.model.graph_network.eval() if "model" in self.__dict__ else self.read_network().eval()

    def save(self, folder: Path) -> None:
        """Write model and bank into a run folder."""
        self.model.save_pretrained(folder / "model")
        self.bank.save(folder / "bank")

    def embed(self, instances: Instances, rows: Sequence[int] | None = None) -> Tensor:
        """Return the embeddings of instances, or of some of their rows, as training computes them."""
        backbone = self.model.backbone
        budget = min(self.settings.max_tokens, backbone.max_tokens)
        prompts = write_prompts(instances, backbone.count_tokens, budget=budget, rows=rows)
        inputs = prepare_inputs(backbone, prompts.texts, max_tokens=budget, multiple=TOKENS_AT_ONCE)
        return embed_prompts(self.model, inputs, precision=self.settings.precision)

    def language_logits(self, embeddings: Tensor) -> Tensor:
        """Return the logits of the language model's own head."""
        return self.model.language_logits(embeddings)

    @torch.no_grad()
    def linked_logits(self, graph: PatientGraph, embeddings: Tensor) -> Tensor:
        """Return the logits of newcomers from their embeddings; ``graph`` is the bank's, extended by them.

        Each is linked to the bank and to nobody else, so a prediction does not depend on who else is predicted.
        """
        self.model.set_training(language=False, graph=False)
        if not self.settings.uses_graph:
            return self.language_logits(embeddings)
        return self.bank_states.logits(graph, embeddings)

    @cached_property
    def bank_states(self) -> BankStates:
        """The states of the bank in the graph network, computed for the first newcomer and kept for all others."""
        network = self.model.graph_network.eval()
        return BankStates.of(network, self.bank.graph, torch.from_numpy(self.bank.embeddings))


def _settings_of(run: Run) -> TrainingSettings:
    try:
        return TrainingSettings.model_validate(run.identity.settings)
    except ValidationError as error:
        first = error.errors()[0]
        raise PlmError(
            f"the settings of the run '{run.folder}' are not those of this version "
            f"({'.'.join(str(part) for part in first['loc'])}: {first['msg'].lower()})",
            remedy="open it with the version that trained it, or train it again",
        ) from None
