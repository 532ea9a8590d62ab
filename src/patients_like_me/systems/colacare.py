r"""ColaCare: experts, doctors and a lead who discuss a patient; reports and experts are fused (Wang et al. 2025).

1. Three experts, networks over visits, are trained on the task: AdaCare, MC-GRU and RETAIN.
2. For every patient a consultation (:mod:`patients_like_me.systems.consultation`) over one language model writes a
   report; passages come from a user's folder of guidelines by BM25.
3. Fusion, with h the experts' vectors and r the report as a frozen text encoder reads it:

.. math:: \mathrm{logits} = W_2\,\mathrm{GELU}(W_1 [h_1; h_2; h_3; r])

Consultations cost up to 4 + 4 x rounds calls per patient: fusion is trained on ``most_reports`` training instances,
and everybody who is predicted is discussed. The paper retrieves with MedCPT from a manual that is not free; BM25 and an
own folder take its place, and without a folder the name says ``no-guidelines``. With the deterministic language model
the reports repeat what the experts say, so the system is an ensemble of experts; the name has the language model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, nn

from patients_like_me.errors import PlmError
from patients_like_me.model.llm.client import LLMClient
from patients_like_me.model.llm.settings import LLMSettings
from patients_like_me.model.randomness import mixed_seed
from patients_like_me.model.settings import BackboneSettings
from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.adacare import AdaCareSettings
from patients_like_me.systems.consultation import Consultation, Consulted, most_calls
from patients_like_me.systems.contract import Arrays, Fitted, RunContext, System, below
from patients_like_me.systems.epochs import EpochSettings, logits_in_batches, network_with, train_network, weights_of
from patients_like_me.systems.expert_views import EXPERTS, Expert, View, views_of
from patients_like_me.systems.features import Vocabularies
from patients_like_me.systems.guidelines import Guidelines
from patients_like_me.systems.mc_gru import McGruSettings
from patients_like_me.systems.name_embeddings import frozen_backbone, text_vectors
from patients_like_me.systems.patient_context import contexts_of
from patients_like_me.systems.problem import Logits, Problem, only
from patients_like_me.systems.retain import RetainSettings
from patients_like_me.systems.stages import Stage, joined_account, kept_stage
from patients_like_me.systems.visit_network import Facts, vocabularies_of
from patients_like_me.tasks.instances import Instances, Rows
from patients_like_me.tasks.kinds import BINARY, MULTICLASS


class ColaCareSettings(EpochSettings):
    """ColaCare's settings; the defaults are those of its paper."""

    llm: LLMSettings = Field(LLMSettings(), description="the language model of doctors and lead")
    backbone: BackboneSettings = Field(BackboneSettings(), description="the frozen encoder that reads reports")
    guidelines: str = Field("", description="a folder of text files with guidelines; '': none")
    passages: int = Field(3, ge=0, description="passages per doctor")
    max_rounds: int = Field(3, ge=0, le=10, description="rounds until all doctors agree")
    important: int = Field(5, ge=1, description="codes per expert that a doctor is told")
    record_words: int = Field(250, ge=20, description="words of the record in a prompt; the earliest visits go first")
    most_reports: int = Field(300, ge=2, description="training instances that are discussed, drawn by the seed")
    adacare: AdaCareSettings = Field(AdaCareSettings(), description="the first expert")
    mc_gru: McGruSettings = Field(McGruSettings(), description="the second expert")
    retain: RetainSettings = Field(RetainSettings(), description="the third expert")
    max_tokens: int = Field(256, ge=16, description="tokens of a report that are read")
    merged: int = Field(128, ge=1, description="width of the fusion")
    dropout: float = Field(0.1, ge=0, lt=1, description="share of the fused vector dropped in training")
    epochs: int = Field(50, ge=1, description="most epochs of the fusion")
    patience: int = Field(10, ge=1, description="epochs without a better validation score before stopping")
    batch_size: int = Field(32, ge=1, description="instances per step of the fusion")

    def of_expert(self, expert: Expert) -> EpochSettings:
        """Return the settings of one expert; the seed is that of the whole."""
        own: EpochSettings = getattr(self, _SETTING_OF[expert.name])
        return own.model_copy(update={"seed": self.seed})


_SETTING_OF = {"AdaCare": "adacare", "MC-GRU": "mc_gru", "RETAIN": "retain"}


class Fusion(nn.Module):
    """The last network: experts' vectors and report vectors into logits."""

    def __init__(self, width: int, merged: int, dropout: float, outputs: int) -> None:
        super().__init__()
        self.merge = nn.Linear(width, merged)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(merged, outputs)

    def forward(self, read: Tensor) -> Tensor:
        """Return logits [B, outputs] from what is read [B, width]."""
        logits: Tensor = self.output(self.dropout(nn.functional.gelu(self.merge(read))))
        return logits


class Practice:
    """Trained experts and the language model: every patient is assessed by the experts and discussed."""

    def __init__(self, settings: ColaCareSettings, facts: Facts, experts: Mapping[str, Arrays]) -> None:
        self.settings, self.facts = settings, facts
        self.vocabularies = vocabularies_of(facts)
        self.networks = [
            (expert, expert.network.opened(Fitted(settings.of_expert(expert), experts[expert.name], facts)))
            for expert in EXPERTS
        ]
        self.client = LLMClient.of(settings.llm)
        self.guidelines = Guidelines.read(settings.guidelines)
        self.consultation: Consultation | None = None

    def views(self, instances: Instances) -> list[View]:
        """Return what the experts say."""
        return views_of(self.networks, self.vocabularies, instances, self.settings.important)

    def consultations(self, instances: Instances, views: Sequence[View], report: Any = None) -> list[Consulted]:
        """Discuss every instance."""
        settings = self.settings
        self.consultation = self.consultation or Consultation(
            task=instances.task,
            client=self.client,
            guidelines=self.guidelines,
            passages=settings.passages,
            rounds=settings.max_rounds,
            record_words=settings.record_words,
        )
        found = []
        for row, context in enumerate(contexts_of(instances)):
            if report is not None:
                report(f"consultations: instance {row + 1:,} of {len(instances):,}")
            found.append(self.consultation.consult(context, views, row))
        return found

    def read(self, instances: Instances, report: Any = None) -> tuple[npt.NDArray[np.float32], list[Consulted]]:
        """Return what the fusion reads of instances, [N, width], and the consultations."""
        views = self.views(instances)
        consulted = self.consultations(instances, views, report)
        texts = text_vectors([each.report for each in consulted], self.settings.backbone, self.settings.max_tokens)
        return np.concatenate([*(view.vectors for view in views), texts], axis=1), consulted


def fit(problem: Problem, run: RunContext) -> Fitted:
    """Train the experts, discuss some training instances and everybody who is evaluated, and train the fusion.

    Without a run folder, as in tuning, test patients are not discussed: nobody asks for them.
    """
    settings: ColaCareSettings = run.settings
    vocabularies = Vocabularies.of_training(problem.instances, problem.train)
    if not any(vocabularies.codes.values()):
        raise PlmError("no training instance has a code to learn from", remedy="use a larger cohort")
    # Both are refused before hours of training.
    Guidelines.read(settings.guidelines)
    LLMClient.of(settings.llm)
    facts: dict[str, Any] = {"vocabularies": vocabularies.as_json(), "outputs": problem.outputs}
    stages, experts = [], {}
    for expert in EXPERTS:
        stage = kept_stage(run, expert.name, _training_of(problem, expert), settings=settings.of_expert(expert))
        experts[expert.name] = stage.arrays
        stages.append((expert.name, stage.account))
    practice = Practice(settings, facts, experts)
    chosen = discussed_rows(problem, settings)
    evaluated = problem.validation if run.folder is None else problem.evaluated
    rows = np.concatenate([problem.train[chosen], evaluated])
    read, consulted = practice.read(only(problem.instances, rows), run.report)
    center, scale = _spread(read[: len(chosen)])
    table = torch.from_numpy((read - center) / scale)
    place_of_row = np.full(len(problem.instances), -1)
    place_of_row[rows] = np.arange(len(rows))

    def logits(network: Fusion, wanted: Rows) -> Tensor:
        found: Tensor = network(table[torch.from_numpy(place_of_row[wanted])])
        return found

    smaller = replace(problem, train=problem.train[chosen], targets=problem.targets[chosen])
    width = table.shape[1]
    network, account = train_network(
        smaller, run, lambda: Fusion(width, settings.merged, settings.dropout, problem.outputs), logits
    )
    facts |= {
        "width": width,
        "guidelines_digest": practice.guidelines.digest,
        "language_model": practice.client.backend.identity,
        "backbone_sha256": frozen_backbone(settings.backbone).weights_sha256,
    }
    arrays = {f"fusion.{name}": value for name, value in weights_of(network).items()}
    arrays |= {"center": center, "scale": scale}
    for name, weights in experts.items():
        arrays |= {f"{name}.{key}": np.asarray(value) for key, value in weights.items()}
    notes = _notes(practice, consulted, len(chosen), len(problem.train))
    stages.append(("fusion", account))
    trained = sum(each.trained_weights or 0 for _, each in stages)
    account = joined_account(stages, notes=notes, trained_weights=trained)
    account = replace(account, seconds=(account.seconds or 0.0) + practice.client.usage.seconds)
    found = None if run.folder is None else logits_in_batches(network, logits, evaluated)
    return Fitted(settings, arrays, facts, account, evaluated=found)


def _training_of(problem: Problem, expert: Expert) -> Any:
    def compute(context: RunContext) -> Stage:
        context.report(f"training the expert {expert.name}")
        fitted = expert.network.fit(problem, context)
        return Stage(fitted.arrays, fitted.account)

    return compute


def discussed_rows(problem: Problem, settings: ColaCareSettings) -> npt.NDArray[np.int64]:
    """Return the places in ``problem.train`` of the instances that are discussed, in order."""
    order = np.random.default_rng(mixed_seed(settings.seed, 12)).permutation(len(problem.train))
    return np.sort(order[: settings.most_reports])


def _spread(read: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return mean and spread of every column over the discussed training instances."""
    scale = read.std(axis=0)
    return read.mean(axis=0), np.where(scale > 1e-6, scale, 1.0).astype(np.float32)


def _notes(practice: Practice, consulted: Sequence[Consulted], reports: int, training: int) -> list[str]:
    consultation, guidelines = practice.consultation, practice.guidelines
    assert consultation is not None
    agreed, held = sum(each.agreed for each in consulted), np.mean([each.rounds for each in consulted])
    return [
        f"fusion trained on reports of {reports:,} of {training:,} training instances",
        f"{len(guidelines.passages):,} passages of {guidelines.files:,} guidelines",
        f"all doctors agreed on {agreed:,} of {len(consulted):,} patients; {held:.1f} rounds on average",
        f"{consultation.unread:,} of {consultation.answers:,} answers lacked a field that was asked for",
        practice.client.usage.sentence(practice.settings.llm.name),
    ]


def predict(fitted: Fitted, instances: Instances) -> Logits:
    """Let the experts look, discuss everybody, and fuse."""
    settings: ColaCareSettings = fitted.settings
    facts = fitted.facts
    practice = Practice(settings, facts, {expert.name: below(fitted.arrays, f"{expert.name}.") for expert in EXPERTS})
    if practice.guidelines.digest != facts["guidelines_digest"]:
        raise PlmError(
            f"the guidelines in '{settings.guidelines}' are not those of the training",
            remedy="restore them, or train again",
        )
    practice.client.refuse_another(facts.get("language_model"))
    frozen_backbone(settings.backbone, facts.get("backbone_sha256", ""))
    read, _ = practice.read(instances)
    table = torch.from_numpy((read - fitted.arrays["center"]) / fitted.arrays["scale"])
    network = network_with(
        lambda: Fusion(facts["width"], settings.merged, settings.dropout, facts["outputs"]),
        below(fitted.arrays, "fusion."),
    )
    return logits_in_batches(network, lambda given, rows: given(table[torch.from_numpy(rows)]), np.arange(len(table)))


def llm_calls(problem: Problem, settings: ColaCareSettings) -> dict[str, int]:
    """Return how often a run asks the language model at most."""
    discussed = len(discussed_rows(problem, settings)) + len(problem.evaluated)
    return {f"consultations of {discussed:,} instances": most_calls(discussed, settings.max_rounds)}


def title(settings: Any) -> str:
    """Return the name with the language model, and whether there are guidelines.

    >>> title(ColaCareSettings()), title(ColaCareSettings(guidelines="manual"))
    ('ColaCare[deterministic,no-guidelines]', 'ColaCare[deterministic]')
    """
    return f"ColaCare[{','.join([settings.llm.name, *([] if settings.guidelines else ['no-guidelines'])])}]"


SYSTEM = System(
    name="colacare",
    description="three experts, three doctors and a lead over one language model; reports and experts are fused",
    settings=ColaCareSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    kinds=(BINARY, MULTICLASS),
    title=title,
    llm_calls=llm_calls,
    stages=lambda settings: {
        **{expert.name: settings.of_expert(expert).epochs for expert in EXPERTS},
        "fusion": settings.epochs,
    },
    fit=fit,
    predict=predict,
)
