r"""LEADER: a small network that learns the hidden states of a large language model (Liu et al. 2024, arXiv 2402.02803).

Teacher: a language model with a linear layer reads prompts and learns the labels; its vectors h of the training
instances are computed once. Student, with one table of code vectors for all kinds:

.. math:: v^k_t = \mathrm{mean}\ \mathrm{transformer}_k(\text{codes of kind}\ k\ \text{in visit}\ t), \qquad
          r^k = \mathrm{mean}_t\ \mathrm{transformer}(v^k_1, ..., v^k_T)

with one transformer over visits for all kinds. The medications begin with the profile prompt, a vector of the
demographics: it takes the place of earlier medications where a patient has none.

.. math:: u = W_1\,\mathrm{ReLU}[r^d; r^p; r^m], \quad \mathrm{logits} = W_2\,\mathrm{ReLU}(u), \quad
          L = L_{task} + \alpha\,\Vert W_h u - h \Vert^2 / d + \gamma\,L_{align}

:math:`L_{align}` is contrastive over a batch: the profile prompt of a patient should be nearest to the encoded
medication set of that patient, both projected.

The public code returns the diagnosis head in place of the medication head; here there is one head, that of the
medications. Its teacher reads the last token; our backbones see both ways and are averaged over tokens. The target set
of the alignment is that of the label; for tasks without drugs the current visit's medications, where they are an input.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from patients_like_me.model.settings import BackboneSettings, Precision
from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.contract import Fitted, RunContext, System
from patients_like_me.systems.epochs import EpochSettings, OptimizerName, train_network, weights_of
from patients_like_me.systems.features import VisitFeatures, Vocabularies
from patients_like_me.systems.language_reader import LanguageReader, loaded_backbone, prompts_of
from patients_like_me.systems.problem import Problem
from patients_like_me.systems.set_block import SetBlock, mean_of_seen
from patients_like_me.systems.stages import Stage, joined_account, kept_stage
from patients_like_me.systems.visit_layers import FIRST_WEIGHTS, Sizes, Visits, at_last_visit, contrast
from patients_like_me.systems.visit_network import Facts, VisitNetwork, sizes_of, started
from patients_like_me.tasks.instances import Rows


class LeaderSettings(EpochSettings):
    """LEADER's settings; the defaults are those of its public code."""

    backbone: BackboneSettings = Field(BackboneSettings(), description="the teacher's language model")
    max_tokens: int = Field(512, ge=16, description="token budget of the teacher's prompt")
    precision: Precision = Field("auto", description="half precision only where the device is faster with it")
    teacher_epochs: int = Field(4, ge=1, description="most epochs of the teacher")
    teacher_rate: float = Field(2e-4, gt=0, le=100, description="learning rate of the teacher")
    teacher_batch: int = Field(16, ge=1, description="prompts per step of the teacher")
    width: int = Field(64, ge=1, description="values per code and visit")
    heads: int = Field(4, ge=1, description="heads of the attention")
    feed_forward: int = Field(256, ge=1, description="values inside the transformers' feed-forward networks")
    layers: int = Field(1, ge=1, description="blocks of each transformer")
    dropout: float = Field(0.1, ge=0, lt=1, description="share of hidden values dropped in training")
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="share of attention weights dropped in training")
    distillation: float = Field(0.4, ge=0, description="weight of the distance to the teacher; 0: no teacher at all")
    alignment: float = Field(0.005, ge=0, description="weight of the contrast between profile and medications")
    temperature: float = Field(1.0, gt=0, description="temperature of that contrast")
    epochs: int = Field(100, ge=1, description="most epochs of the student")
    patience: int = Field(10, ge=1, description="epochs without a better validation score before stopping")
    batch_size: int = Field(32, ge=1, description="instances per step; the public scripts use 4")
    optimizer: OptimizerName = Field("adam", description="the rule that changes the weights")
    rate: float = Field(5e-4, gt=0, le=100, description="learning rate of the student")
    weight_decay: float = Field(0.0, ge=0, le=100, description="the optimizer's weight decay")

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> LeaderSettings:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self


class Leader(nn.Module):
    """The student. ``medication_of_label`` [M] has the code number of each drug label; None where labels are not drugs.

    ``shows_medications`` tells whether the current visit's medications are an input; else that place of the sequence
    stays empty. ``teacher_width`` 0 is a student without a teacher.
    """

    medication_of_label: Tensor | None

    def __init__(
        self,
        settings: LeaderSettings,
        sizes: Sizes,
        *,
        teacher_width: int,
        shows_medications: bool,
        medication_of_label: list[int] | None = None,
    ) -> None:
        super().__init__()
        width = settings.width
        self.settings, self.kinds, self.shows_medications = settings, tuple(sizes.codes), shows_medications
        self.tables = nn.ParameterDict(
            {kind: nn.Parameter(FIRST_WEIGHTS * torch.randn(count + 1, width)) for kind, count in sizes.codes.items()}
        )
        numbers = None if medication_of_label is None else torch.tensor(medication_of_label)
        self.register_buffer("medication_of_label", numbers, persistent=False)
        self.code_blocks = nn.ModuleDict({kind: _blocks(settings) for kind in self.kinds})
        self.visit_blocks = _blocks(settings)
        # Without a recorded field the prompt is the same for everybody, and still the place of missing medications.
        self.profile = nn.Linear(max(1, sizes.demographics), width)
        streams = [kind for kind in self.kinds if kind != "medication"]
        self.streams = tuple(streams)
        self.hidden = nn.Linear((len(streams) + 1) * width, 2 * width)
        self.output = nn.Linear(2 * width, sizes.outputs)
        self.projector = nn.Linear(2 * width, teacher_width) if teacher_width else None
        aligned = settings.alignment and (shows_medications or numbers is not None) and "medication" in self.kinds
        self.of_profile = nn.Linear(width, width, bias=False) if aligned else None
        self.of_medications = nn.Linear(width, width, bias=False) if aligned else None

    def forward(self, visits: Visits) -> Tensor:
        """Return logits [B, outputs]."""
        return self.logits(self.mediator(visits))

    def logits(self, mediator: Tensor) -> Tensor:
        """Return logits from the hidden layer u."""
        logits: Tensor = self.output(torch.relu(mediator))
        return logits

    def mediator(self, visits: Visits) -> Tensor:
        """Return the hidden layer u, [B, 2 width]."""
        mask = visits.visit_mask
        summed = [self._over_visits(self._visit_vectors(kind, visits.codes[kind]), mask) for kind in self.streams]
        prompt, seen = self.prompt(visits).unsqueeze(1), torch.ones_like(mask[:, :1])
        sequence = prompt
        if "medication" in self.kinds:
            sequence = torch.cat([prompt, self._visit_vectors("medication", visits.codes["medication"])], dim=1)
            shown = mask
            if not self.shows_medications:
                places = torch.arange(mask.shape[1], device=mask.device)
                shown = mask & (places < mask.sum(1, keepdim=True) - 1)
            seen = torch.cat([seen, shown], dim=1)
        hidden: Tensor = self.hidden(torch.relu(torch.cat([*summed, self._over_visits(sequence, seen)], dim=1)))
        return hidden

    def prompt(self, visits: Visits) -> Tensor:
        """Return the profile prompt, [B, width]."""
        fields = visits.demographics
        if not fields.shape[1]:
            fields = fields.new_ones(len(visits.visit_mask), 1)
        prompt: Tensor = self.profile(fields)
        return prompt

    def encode(self, kind: str, codes: Tensor) -> Tensor:
        """Return the vectors [N, width] of sets of codes [N, C]; an empty set is 0."""
        seen = codes > 0
        states = functional.embedding(codes, self.tables[kind])
        # A softmax over nothing is not a number: an empty set looks at its padding, which the mean then leaves out.
        attended = seen | ~seen.any(1, keepdim=True)
        blocks = self.code_blocks[kind]
        assert isinstance(blocks, nn.ModuleList)
        for block in blocks:
            states = block(states, attended)
        return mean_of_seen(states, seen)

    def target_medications(self, visits: Visits, targets: Tensor) -> Tensor:
        """Return the medication set [B, C] that the profile is aligned with, as code numbers."""
        if self.medication_of_label is None:
            return at_last_visit(visits.codes["medication"], visits.visit_mask)
        return torch.where(targets > 0, self.medication_of_label, 0)

    def alignment_loss(self, visits: Visits, targets: Tensor) -> Tensor:
        """Return the contrast [B] of profile prompts and medication sets, both ways; 0 for an empty set."""
        chosen = self.target_medications(visits, targets)
        present = (chosen > 0).any(1)
        if self.of_profile is None or self.of_medications is None or int(present.sum()) < 2:
            return targets.new_zeros(len(targets))
        profiles = self.of_profile(self.prompt(visits)[present])
        medications = self.of_medications(self.encode("medication", chosen[present]))
        losses = contrast(profiles, medications, self.settings.temperature)
        return targets.new_zeros(len(targets)).index_put((present,), losses)

    def _visit_vectors(self, kind: str, codes: Tensor) -> Tensor:
        found = self.encode(kind, codes.reshape(-1, codes.shape[2]))
        return found.view(*codes.shape[:2], -1)

    def _over_visits(self, vectors: Tensor, seen: Tensor) -> Tensor:
        for block in self.visit_blocks:
            vectors = block(vectors, seen)
        return mean_of_seen(vectors, seen)


def distillation_loss(projected: Tensor, states: Tensor) -> Tensor:
    """Return the mean squared distance [B] to the teacher's states."""
    return (projected - states).square().mean(dim=1)


def _blocks(settings: LeaderSettings) -> nn.ModuleList:
    return nn.ModuleList(SetBlock(settings) for _ in range(settings.layers))


def teacher_states(problem: Problem, run: RunContext) -> Stage:
    """Train the teacher on the training instances, stop it on validation, and return its vectors of training alone."""
    settings: LeaderSettings = run.settings
    wanted = EpochSettings(
        seed=settings.seed,
        epochs=settings.teacher_epochs,
        patience=settings.teacher_epochs,
        batch_size=settings.teacher_batch,
        rate=settings.teacher_rate,
    )

    def compute(context: RunContext) -> Stage:
        run.report(f"training the teacher '{settings.backbone.name}'")
        backbone = loaded_backbone(settings.backbone, settings.seed)
        inputs = prompts_of(backbone, problem.instances, settings.max_tokens, cache=run.cache)

        def build() -> LanguageReader:
            return LanguageReader(backbone, problem.outputs, bias=False, precision=settings.precision)

        reader, account = train_network(problem, context, build, lambda network, rows: network.logits_of(inputs, rows))
        assert isinstance(reader, LanguageReader)
        return Stage({"states": reader.vectors(inputs, problem.train).numpy()}, account)

    return kept_stage(run, "teacher", compute, settings=wanted)


def build(settings: LeaderSettings, facts: Facts) -> Leader:
    """Build the student for the data that the facts describe."""
    return Leader(
        settings,
        sizes_of(facts),
        teacher_width=facts["teacher_width"],
        shows_medications=facts["shows_medications"],
        medication_of_label=facts["medication_of_label"],
    )


def fit(problem: Problem, run: RunContext) -> Fitted:
    """Train the teacher, then the student."""
    settings: LeaderSettings = run.settings
    instances, kind = problem.instances, problem.kind
    vocabularies = Vocabularies.of_training(instances, problem.train)
    stages, states, notes = [], None, ["without a teacher"]
    if settings.distillation:
        teacher = teacher_states(problem, run)
        states = torch.from_numpy(np.asarray(teacher.arrays["states"]))
        stages.append(("teacher", teacher.account))
        notes = [_about_teacher(problem, settings, teacher)]
    facts = {
        "vocabularies": vocabularies.as_json(),
        "outputs": problem.outputs,
        "teacher_width": 0 if states is None else states.shape[1],
        "shows_medications": "medication" in instances.task.inputs_of_current_visit(instances.settings),
        "medication_of_label": _numbers_of_labels(problem, vocabularies),
    }
    features = VisitFeatures.of(instances, vocabularies)
    place_of_row = np.full(len(instances), -1)
    place_of_row[problem.train] = np.arange(len(problem.train))

    def loss(network: Leader, rows: Rows, targets: Tensor, _epoch: int) -> Tensor:
        visits = features.batch(rows)
        mediator = network.mediator(visits)
        losses = kind.loss(network.logits(mediator), targets)
        if network.projector is not None and states is not None:
            own = states[torch.from_numpy(place_of_row[rows])]
            losses = losses + settings.distillation * distillation_loss(network.projector(mediator), own)
        if network.of_profile is not None:
            losses = losses + settings.alignment * network.alignment_loss(visits, targets)
        return losses.mean()

    def start() -> Leader:
        network = build(settings, facts)
        return started(network, network.output.bias, problem)

    network, account = train_network(problem, run, start, lambda network, rows: network(features.batch(rows)), loss)
    weights = sum(weight.numel() for weight in network.parameters())
    notes.append(f"{weights:,} trained weights of the student")
    return Fitted(settings, weights_of(network), facts, joined_account([*stages, ("student", account)], notes=notes))


def _about_teacher(problem: Problem, settings: LeaderSettings, teacher: Stage) -> str:
    metric = problem.instances.task.metrics[0]
    scores = [record.get(f"validation_{metric}") for record in teacher.account.epochs]
    best = max((score for score in scores if score is not None), default=None)
    found = "no score" if best is None else f"{metric} {best:.4f}"
    return f"teacher {settings.backbone.name}: {found} on validation after {len(scores)} epochs"


def _numbers_of_labels(problem: Problem, vocabularies: Vocabularies) -> list[int] | None:
    """Return the medication number of every drug label, 0 for those that no input has; None if labels are not drugs."""
    if problem.instances.task.label_codes != "medication":
        return None
    number = {code: at for at, code in enumerate(vocabularies.codes["medication"], start=1)}
    return [number.get(code, 0) for code in problem.instances.label_vocabulary]


def title(settings: Any) -> str:
    """Return the name with that of the teacher; of a folder its last part.

    >>> title(LeaderSettings())
    'LEADER[teacher=minilm]'
    """
    if not settings.distillation:
        return "LEADER[no-teacher]"
    return f"LEADER[teacher={Path(settings.backbone.name).name}]"


NETWORK = VisitNetwork(build)
SYSTEM = System(
    name="leader",
    description="a small transformer over visits that learns the hidden states of a tuned language model",
    settings=LeaderSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    title=title,
    stages=lambda settings: (
        ({"teacher": settings.teacher_epochs} if settings.distillation else {}) | {"student": settings.epochs}
    ),
    fit=fit,
    predict=NETWORK.predict,
)
