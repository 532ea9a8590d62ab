r"""UDC: diseases as codes that a model and a language model share (WWW 2025, arXiv 2501.16373).

1. Collaborative: a transformer over visits learns the task; its vectors of diseases are :math:`e_{co}`.
2. Codes: :mod:`disease codes <patients_like_me.systems.disease_codes>` from :math:`e_{co}` and from the names.
3. Fine-tuning: diseases are read twice, by their own vectors and by the decoded ones, which stay fixed: common diseases
   by their own view, rare ones by their names. :math:`p = (p_{own} + p_{decoded}) / 2`.

A disease is common if it belongs to the most frequent ones that make up 80 % of all occurrences in training.

The public code hands the test loader to both trainings as validation and keeps the best epoch by it: its published
numbers are selected on test. Here validation selects. Its names are read by SapBERT; here by any backbone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from patients_like_me.errors import PlmError
from patients_like_me.model.settings import BackboneSettings
from patients_like_me.plain_text import counted
from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.contract import Arrays, Fitted, RunContext, System
from patients_like_me.systems.disease_codes import DiseaseCodesSettings, DiseaseKnowledge, train_disease_codes
from patients_like_me.systems.epochs import EpochSettings, OptimizerName, load_weights, train_network, weights_of
from patients_like_me.systems.features import VisitFeatures, Vocabularies
from patients_like_me.systems.name_embeddings import name_embeddings, names_of_codes, wordless_note
from patients_like_me.systems.problem import Problem
from patients_like_me.systems.set_block import SetBlock
from patients_like_me.systems.stages import Stage, joined_account, kept_stage
from patients_like_me.systems.training_visits import TrainingVisits, common_codes
from patients_like_me.systems.visit_layers import (
    Head,
    Sizes,
    Visits,
    at_last_visit,
    first_embeddings,
    head_bias,
    sum_of_codes,
)
from patients_like_me.systems.visit_network import Facts, VisitNetwork, sizes_of, started

#: Visits further back than this share one place.
_PLACES = 64


class UdcSettings(EpochSettings):
    """UDC's settings; the defaults are those of its public code for drugs."""

    backbone: BackboneSettings = Field(BackboneSettings(), description="the language model that reads names of codes")
    width: int = Field(128, ge=1, description="values per code and visit")
    layers: int = Field(2, ge=1, description="blocks of the transformer over visits")
    heads: int = Field(4, ge=1, description="heads of the attention")
    feed_forward: int = Field(256, ge=1, description="values inside the transformer's feed-forward networks")
    dropout: float = Field(0.3, ge=0, lt=1, description="share of hidden values dropped in training")
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="share of attention weights dropped in training")
    codes: DiseaseCodesSettings = DiseaseCodesSettings()
    companions: int = Field(10, ge=1, description="procedures and drugs per disease in its condition, and its drugs")
    common_share: float = Field(0.8, gt=0, le=1, description="share of all occurrences that common diseases make up")
    epochs: int = Field(50, ge=1, description="most epochs of the first stage")
    tuning_epochs: int = Field(50, ge=1, description="most epochs of the third stage")
    tuning_rate: float = Field(1e-4, gt=0, le=100, description="learning rate of the third stage")
    optimizer: OptimizerName = Field("adam", description="the rule that changes the weights")
    rate: float = Field(1e-3, gt=0, le=100, description="learning rate of the first stage")
    weight_decay: float = Field(0.0, ge=0, le=100, description="the optimizer's weight decay")
    batch_size: int = Field(32, ge=1, description="training instances per step")

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> UdcSettings:
        for name, parts, width in (("heads", self.heads, self.width), ("groups", self.codes.groups, self.codes.width)):
            if width % parts:
                raise ValueError(f"width {width} is not a multiple of {name} {parts}")
        return self


class Udc(nn.Module):
    """The transformer over visits, with its own diseases and, from the third stage on, the decoded ones beside them."""

    decoded: Tensor

    def __init__(self, settings: UdcSettings, sizes: Sizes, *, reads_decoded: bool) -> None:
        super().__init__()
        if "diagnosis" not in sizes.codes:
            raise PlmError("UDC needs diagnoses, and no training instance has one", remedy="use another system")
        width = settings.width
        self.tables = nn.ParameterDict(
            {kind: nn.Parameter(first_embeddings(count + 1, width)) for kind, count in sizes.codes.items()}
        )
        self.places = nn.Parameter(0.02 * torch.randn(_PLACES, width))
        self.blocks = nn.ModuleList(SetBlock(settings) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(width)
        self.head = Head(width, sizes)
        self.reads_decoded = reads_decoded
        self.register_buffer("decoded", torch.zeros(sizes.codes["diagnosis"] + 1, width))

    def forward(self, visits: Visits) -> Tensor:
        """Return logits [B, outputs]; with decoded diseases those of the mean of both probabilities."""
        own = self.read(visits, self.tables["diagnosis"])
        return mean_of_logits(own, self.read(visits, self.decoded)) if self.reads_decoded else own

    def read(self, visits: Visits, diseases: Tensor) -> Tensor:
        """Return logits with one table of diseases."""
        mask = visits.visit_mask
        tables = {**self.tables, "diagnosis": diseases}
        states = torch.stack([sum_of_codes(visits.codes[kind], table) for kind, table in tables.items()]).sum(0)
        back = mask.sum(1, keepdim=True) - 1 - torch.arange(mask.shape[1], device=mask.device)
        states = states + self.places[back.clamp(0, _PLACES - 1)]
        for block in self.blocks:
            states = block(states, mask)
        logits: Tensor = self.head(self.norm(at_last_visit(states, mask)), visits.demographics)
        return logits


def mean_of_logits(first: Tensor, second: Tensor) -> Tensor:
    """Return the logit of the mean of two probabilities.

    >>> mean_of_logits(torch.tensor([0.0]), torch.tensor([0.0])).tolist()
    [0.0]
    """
    positive = torch.logaddexp(functional.logsigmoid(first), functional.logsigmoid(second))
    negative = torch.logaddexp(functional.logsigmoid(-first), functional.logsigmoid(-second))
    return positive - negative


def disease_knowledge(
    problem: Problem, settings: UdcSettings, vocabularies: Vocabularies, weights: Arrays
) -> DiseaseKnowledge:
    """Gather what the second stage reads, from the first stage's weights, the names and the training visits."""
    visits = TrainingVisits.of(problem, vocabularies)
    diseases, drugs = vocabularies.codes["diagnosis"], vocabularies.codes["medication"]
    tables = {
        kind: torch.from_numpy(np.asarray(weights[f"tables.{kind}"]))[1:]
        for kind in ("diagnosis", "procedure", "medication")
        if f"tables.{kind}" in weights
    }
    # A drug that is a label and never an input has no vector.
    known = {kind: len(table) for kind, table in tables.items()}
    kinds = [kind for kind in ("procedure", "medication") if kind in tables]
    first_row = dict(zip(kinds, np.cumsum([0, *(known[kind] for kind in kinds)])[:-1].tolist(), strict=True))
    condition = -np.ones((len(diseases), settings.companions), dtype=np.int64)
    next_drugs = condition.copy()
    for row, partners in enumerate(visits.partners("diagnosis", kinds, most=10**9)):
        usable = [(kind, place) for kind, place, _ in partners if place < known[kind]]
        chosen = [first_row[kind] + place for kind, place in usable][: settings.companions]
        condition[row, : len(chosen)] = chosen
        of_drugs = [place for kind, place in usable if kind == "medication"][: settings.companions]
        next_drugs[row, : len(of_drugs)] = of_drugs
    width = tables["diagnosis"].shape[1]
    texts = name_embeddings(names_of_codes(problem.instances, "diagnosis", diseases), settings.backbone)
    drug_texts = name_embeddings(names_of_codes(problem.instances, "medication", drugs), settings.backbone)
    return DiseaseKnowledge(
        vectors={"co": tables["diagnosis"], "text": torch.from_numpy(texts)},
        companions=torch.cat([tables[kind] for kind in kinds]) if kinds else torch.zeros(0, width),
        condition=torch.from_numpy(condition),
        drugs={"co": tables.get("medication", torch.zeros(0, width)), "text": torch.from_numpy(drug_texts)},
        next_drugs=torch.from_numpy(next_drugs),
        common=torch.from_numpy(common_codes(visits.counts("diagnosis"), settings.common_share)),
    )


def build(settings: UdcSettings, facts: Facts) -> Udc:
    """Build the network of the last stage."""
    return Udc(settings, sizes_of(facts), reads_decoded=True)


def fit(problem: Problem, run: RunContext) -> Fitted:
    """Run the three stages; each sees training patients only and is stopped on validation."""
    settings: UdcSettings = run.settings
    vocabularies = Vocabularies.of_training(problem.instances, problem.train)
    facts: dict[str, Any] = {"vocabularies": vocabularies.as_json(), "outputs": problem.outputs}
    sizes, features = sizes_of(facts), VisitFeatures.of(problem.instances, vocabularies)

    def logits(network: Udc, rows: Any) -> Tensor:
        found: Tensor = network(features.batch(rows))
        return found

    def first_start() -> Udc:
        network = Udc(settings, sizes, reads_decoded=False)
        return started(network, head_bias(network), problem)

    def collaborative(context: RunContext) -> Stage:
        network, account = train_network(problem, context, first_start, logits)
        return Stage(weights_of(network), account)

    first = kept_stage(run, "collaborative", collaborative)
    known = disease_knowledge(problem, settings, vocabularies, first.arrays)

    def codes(context: RunContext) -> Stage:
        del context
        run.report(f"learning codes of {len(known.common):,} diseases")
        network = train_disease_codes(known, settings.codes, settings.seed)
        return Stage({"decoded": network.table(known).numpy()})

    second = kept_stage(run, "codes", codes)

    def start() -> Udc:
        network = build(settings, facts)
        padding = np.zeros((1, settings.width), dtype=np.float32)
        load_weights(network, {**first.arrays, "decoded": np.concatenate([padding, second.arrays["decoded"]])})
        return network

    wanted = settings.model_copy(update={"epochs": settings.tuning_epochs, "rate": settings.tuning_rate})
    network, account = train_network(problem, replace(run, settings=wanted), start, logits)
    rare = [
        code for code, common in zip(vocabularies.codes["diagnosis"], known.common.tolist(), strict=True) if not common
    ]
    notes = [
        f"{len(rare)} of {counted(len(known.common), 'disease')} are rare and read by their names",
        f"names read by {Path(settings.backbone.name).name}",
        *wordless_note(names_of_codes(problem.instances, "diagnosis", vocabularies.codes["diagnosis"])),
        f"{sum(weight.numel() for weight in network.parameters()):,} trained weights",
    ]
    stages = [("collaborative", first.account), ("codes", second.account), ("fine-tuning", account)]
    return Fitted(settings, weights_of(network), {**facts, "rare": rare}, joined_account(stages, notes=notes))


NETWORK = VisitNetwork(build)
SYSTEM = System(
    name="udc",
    description="a transformer over visits whose rare diseases are read by their names, through shared codes",
    settings=UdcSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    tasks=("drug_recommendation",),
    title=lambda settings: f"UDC[names={Path(settings.backbone.name).name}]",
    stages=lambda settings: {"collaborative": settings.epochs, "fine-tuning": settings.tuning_epochs},
    fit=fit,
    predict=NETWORK.predict,
)
