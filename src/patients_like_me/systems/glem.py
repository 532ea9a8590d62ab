"""GLEM: a language model and a graph network that teach each other by soft labels (Zhao et al. 2023, arXiv 2210.14709).

1. The language model learns the labels through a linear layer; its vectors of all instances are kept.
2. The graph network learns the labels on those vectors, by full-batch steps.
3. Rounds of EM. E: the language model goes on from its last weights, with the graph network's soft labels mixed into
   its loss. M: the graph network starts again on the new vectors, with the language model's soft labels mixed in. No
   gradient passes between the two. See :mod:`patients_like_me.systems.soft_label_graph` for loss and graph network.

The original is transductive: soft labels are those of unlabelled validation and test nodes. Here every training
instance has its label and nobody else is in the training graph, where the original's code falls back to the plain loss:
``mode=literal``. ``distil`` (default) gives every training instance the soft label beside its own; ``holdout`` hides
the labels of a share of the training patients, who take the part of the unlabelled nodes. Validation, test and
newcomers are linked to the training instances and send nothing. The paper reports the best round on validation of
either part; ``answer=best`` takes the better of the two, also on validation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.graph.bank import Bank
from patients_like_me.graph.build import build_graph
from patients_like_me.graph.node_sets import taken
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.model.prompt_inputs import PromptInputs
from patients_like_me.model.propagation import FixedPropagation
from patients_like_me.model.randomness import mixed_seed, seeded
from patients_like_me.model.settings import BackboneSettings, Precision
from patients_like_me.runs.predictions import ids_of, listed_labels
from patients_like_me.runs.record import Capabilities
from patients_like_me.runs.run import Run
from patients_like_me.runs.watching import Nobody
from patients_like_me.systems.contract import Account, Arrays, Fitted, RunContext, System, below
from patients_like_me.systems.epochs import EpochSettings, count_trained, load_weights, train_network, weights_of
from patients_like_me.systems.keeping import read_fitted, write_fitted
from patients_like_me.systems.language_reader import LanguageReader, loaded_backbone, prompts_of
from patients_like_me.systems.problem import Logits, Problem, only
from patients_like_me.systems.soft_label_graph import (
    GraphView,
    MixedTargets,
    SoftLabelGraph,
    SoftLabelGraphSettings,
    fit_graph,
    logits_of_linked,
    mixed_loss,
    most_confident,
    soft_labels,
)
from patients_like_me.systems.stages import Stage, joined_account, kept_stage
from patients_like_me.tasks.instances import Instances, Rows
from patients_like_me.training.optimisation import linear_share

Part = Literal["language", "graph"]


class GlemSettings(EpochSettings):
    """GLEM's settings; the defaults are those of its public code, except what our graph and prompts need."""

    mode: Literal["distil", "holdout", "literal"] = Field(
        "distil", description="who has soft labels: all training instances, those with hidden labels, or nobody"
    )
    backbone: BackboneSettings = BackboneSettings()
    graph: GraphSettings = GraphSettings(references="bank")
    graph_part: SoftLabelGraphSettings = SoftLabelGraphSettings()
    max_tokens: int = Field(512, ge=16, description="token budget of a prompt")
    precision: Precision = Field("auto", description="half precision only where the device is faster with it")
    iterations: int = Field(2, ge=0, description="rounds of EM")
    order: Literal["language_first", "graph_first"] = Field("language_first", description="what begins a round")
    em_epochs: int = Field(1, ge=1, description="most epochs of the language model in a round")
    em_rate: float = Field(3e-5, gt=0, le=100, description="learning rate of the language model in a round")
    soft_share: float = Field(0.5, ge=0, le=1, description="share of the graph's soft labels in the language loss")
    temperature: float = Field(0.2, gt=0, description="temperature of the soft labels; below 1 they get sharper")
    smoothing: float = Field(0.1, ge=0, lt=1, description="label smoothing of the language model's own labels")
    warmup: float = Field(0.1, ge=0, lt=1, description="share of the steps over which the learning rate rises")
    hidden_share: float = Field(0.2, gt=0, lt=1, description="holdout: share of training patients without labels")
    soft_ratios: tuple[float, float] = Field(
        (0.1, 0.2), description="holdout: instances with soft labels per labelled one, in the language and graph loss"
    )
    confident: float = Field(0.8, gt=0, le=1, description="holdout: share of the surest soft labels that may be used")
    answer: Literal["best", "language", "graph"] = Field("best", description="which part predicts")
    epochs: int = Field(4, ge=1, description="most epochs of the language model before the first round")
    patience: int = Field(2, ge=1, description="epochs without a better validation score before stopping")
    batch_size: int = Field(36, ge=1, description="prompts per step of the language model")
    rate: float = Field(2e-5, gt=0, le=100, description="learning rate of the language model")

    @model_validator(mode="after")
    def _graph_is_a_bank(self) -> GlemSettings:
        if self.graph.references != "bank":
            raise ValueError("graph.references must be 'bank': GLEM links evaluated instances to training ones alone")
        return self


@dataclass(frozen=True)
class Answer:
    """What one part says after a round: the score of validation, and logits of the training instances."""

    part: Part
    round: int
    score: float | None
    train_logits: Tensor
    arrays: Arrays


class Glem:
    """One training: prompts, graphs, and the two parts in turn."""

    def __init__(self, problem: Problem, run: RunContext) -> None:
        settings: GlemSettings = run.settings
        self.problem, self.run, self.settings = problem, run, settings
        run.report("building the patient graph")
        self.bank = bank_of(problem, settings.graph)
        validation = self.bank.extended_graph(only(problem.instances, problem.validation))
        self.graph = FixedPropagation.of_graph(self.bank.graph)
        self.linked = FixedPropagation.of_graph(validation)
        run.report(f"loading the backbone '{settings.backbone.name}' and writing the prompts")
        self.reader = new_reader(settings, problem.outputs)
        self.inputs: PromptInputs = prompts_of(
            self.reader.backbone, problem.instances, settings.max_tokens, cache=run.cache
        )
        self.labels = torch.from_numpy(problem.targets).float()
        self.known = torch.from_numpy(~hidden_labels(problem, settings))
        self.place_of_row = np.full(len(problem.instances), -1)
        self.place_of_row[problem.train] = np.arange(len(problem.train))
        self.vectors: Tensor | None = None

    def fit(self) -> tuple[list[Answer], list[tuple[str, Account]]]:
        """Train both parts and run the rounds; return the answers and the accounts of all stages, in order."""
        answers: dict[Part, list[Answer]] = {"language": [], "graph": []}
        accounts: list[tuple[str, Account]] = []
        order: tuple[Part, ...] = ("language", "graph")
        for number in range(self.settings.iterations + 1):
            turned = number > 0 and self.settings.order == "graph_first"
            for part in reversed(order) if turned else order:
                other: Part = "graph" if part == "language" else "language"
                taught = answers[other][-1].train_logits if number and answers[other] else None
                train = self.language if part == "language" else self.graph_network
                stage = f"{part}-{number}"
                found, account = train(stage, number, taught)
                answers[part].append(found)
                accounts.append((stage, account))
        return [*answers["language"], *answers["graph"]], accounts

    def language(self, stage: str, number: int, taught: Tensor | None) -> tuple[Answer, Account]:
        """Train the language model from its last weights, and read all training instances again."""
        problem, settings, reader = self.problem, self.settings, self.reader
        targets = self.targets(taught, settings.soft_ratios[0], number)
        seen = targets.known if targets.softened is None else targets.known | targets.softened
        places = np.flatnonzero(seen.numpy())
        part = replace(problem, train=problem.train[places], targets=problem.targets[places])
        changes = {"epochs": settings.em_epochs, "rate": settings.em_rate} if number else {}
        fields = {name: getattr(settings, name) for name in EpochSettings.model_fields}
        wanted = EpochSettings(**{**fields, **changes, "seed": mixed_seed(settings.seed, 8, number) % (1 << 31)})

        def loss(network: LanguageReader, rows: Rows, _targets: Tensor, _epoch: int) -> Tensor:
            chosen = targets.of(torch.from_numpy(self.place_of_row[rows]))
            return mixed_loss(
                problem.kind,
                network.logits_of(self.inputs, rows),
                chosen,
                settings.soft_share,
                settings.smoothing,
            )

        def compute(context: RunContext) -> Stage:
            _, account = train_network(
                part,
                context,
                lambda: reader,
                lambda network, rows: network.logits_of(self.inputs, rows),
                loss,
                rate_share=lambda step, total: linear_share(step, total, settings.warmup),
            )
            return Stage(weights_of(reader), account)

        found = kept_stage(self.run, stage, compute, settings=wanted)
        load_weights(reader, found.arrays)
        reader.eval()
        self.vectors = reader.vectors(self.inputs)
        with torch.no_grad():
            logits = reader.head(self.vectors)
        score = self.judge(logits[torch.from_numpy(problem.validation)])
        of_training = logits[torch.from_numpy(problem.train)]
        return Answer("language", number, score, of_training, found.arrays), found.account

    def graph_network(self, stage: str, number: int, taught: Tensor | None) -> tuple[Answer, Account]:
        """Train a new graph network on the vectors of the language model."""
        problem, settings = self.problem, self.settings
        assert self.vectors is not None, "the language model reads first"
        train, validation = (self.vectors[torch.from_numpy(rows)] for rows in (problem.train, problem.validation))
        view = GraphView(train, self.graph, validation, self.linked)
        targets = self.targets(taught, settings.soft_ratios[1], 1000 + number)

        def compute(context: RunContext) -> Stage:
            del context
            network, _, step = fit_graph(
                view, targets, problem.kind, settings.graph_part, self.judge, seed=settings.seed, phase=number
            )
            return Stage(weights_of(network), Account(best_epoch=step))

        found = kept_stage(replace(self.run, watcher=Nobody()), stage, compute)
        network = opened_graph(found.arrays, settings, problem.outputs)
        with torch.no_grad():
            of_training = network(train, self.graph)
        score = self.judge(view.validation_logits(network))
        return Answer("graph", number, score, of_training, found.arrays), found.account

    def targets(self, taught: Tensor | None, ratio: float, draw: int) -> MixedTargets:
        """Return the labels, mixed with what the other part teaches."""
        settings, kind = self.settings, self.problem.kind
        if taught is None or settings.mode == "literal":
            return MixedTargets(self.labels, self.known)
        soft = soft_labels(kind, taught, settings.temperature)
        if settings.mode == "distil":
            return MixedTargets(self.labels, self.known, soft, self.known)
        hidden = (~self.known).nonzero().flatten()
        sure = hidden[most_confident(kind, soft[hidden], settings.confident)].numpy()
        wanted = min(len(sure), max(1, round(ratio * int(self.known.sum()))))
        chosen = np.random.default_rng(mixed_seed(settings.seed, 9, draw)).choice(sure, wanted, replace=False)
        softened = torch.zeros(len(self.known), dtype=torch.bool)
        softened[torch.from_numpy(chosen)] = True
        return MixedTargets(self.labels, self.known, soft, softened)

    def judge(self, logits: Tensor) -> float | None:
        """Score the logits of validation."""
        return self.problem.judge(self.problem.kind.probabilities(logits.double().numpy()))


def bank_of(problem: Problem, settings: GraphSettings) -> Bank:
    """Return the graph of the training instances, without embeddings; one without an edge is refused."""
    rows = problem.train
    graph = build_graph(taken(problem.instances.diagnosis_sets, rows), settings)
    if not graph.edges:
        raise PlmError(
            f"no two training instances share {settings.tau} diagnoses or more, so the graph is empty",
            remedy="lower graph.tau, or use another system",
        )
    frame = ids_of(problem.instances, rows).select("instance_id", "subject_id")
    outcomes = listed_labels(problem.instances.labels[rows])
    return Bank(graph, np.zeros((len(rows), 0), dtype=np.float32), frame.with_columns(outcomes))


def hidden_labels(problem: Problem, settings: GlemSettings) -> Any:
    """Mark the training instances whose labels are hidden: all those of some patients, in mode ``holdout`` only."""
    patients = problem.instances.frame["subject"].to_numpy()[problem.train]
    if settings.mode != "holdout":
        return np.zeros(len(patients), dtype=bool)
    everyone = np.unique(patients)
    draw = np.random.default_rng(mixed_seed(settings.seed, 10))
    hidden = draw.choice(everyone, max(1, round(settings.hidden_share * len(everyone))), replace=False)
    return np.isin(patients, hidden)


def new_reader(settings: GlemSettings, outputs: int, expected_hash: str | None = None) -> LanguageReader:
    """Load the language model and draw its last layer."""
    backbone = loaded_backbone(settings.backbone, settings.seed, expected_hash)
    with seeded(settings.seed, 1):
        return LanguageReader(backbone, outputs, precision=settings.precision)


def opened_graph(arrays: Arrays, settings: GlemSettings, outputs: int) -> SoftLabelGraph:
    """Return a graph network with weights that were kept."""
    inputs = arrays["convolutions.0.weight"].shape[0]
    with seeded(0):
        network = SoftLabelGraph(inputs, outputs, settings.graph_part)
    load_weights(network, arrays)
    return network.eval()


def fit(problem: Problem, run: RunContext) -> Fitted:
    """Train, and keep the part and round that validate best."""
    settings: GlemSettings = run.settings
    training = Glem(problem, run)
    answers, accounts = training.fit()
    tried = [{"part": each.part, "round": each.round, "validation_score": each.score} for each in answers]
    allowed = [each for each in answers if settings.answer in ("best", each.part)]
    # Of equal ones the first: the language model, which is the simpler part.
    best = max(allowed, key=lambda each: -np.inf if each.score is None else each.score)
    reader = training.reader
    language = next(each for each in answers if each.part == "language" and each.round == _read_by(best, settings))
    load_weights(reader, language.arrays)
    bank = replace(training.bank, embeddings=reader.eval().vectors(training.inputs, problem.train).numpy())
    arrays = {f"language.{name}": value for name, value in language.arrays.items()}
    if best.part == "graph":
        arrays |= {f"graph.{name}": value for name, value in best.arrays.items()}
    hidden = int((~training.known).sum())
    notes = [
        f"mode {settings.mode}: soft labels for "
        + {"distil": "all training instances", "literal": "nobody", "holdout": f"{hidden:,} with hidden labels"}[
            settings.mode
        ],
        f"the {best.part} part of round {best.round} predicts",
        f"{bank.graph.edges:,} edges between {len(problem.train):,} training instances",
    ]
    facts = {"part": best.part, "outputs": problem.outputs, "backbone_sha256": reader.backbone.weights_sha256}
    parts: list[torch.nn.Module] = [reader]
    if best.part == "graph":
        parts.append(opened_graph(best.arrays, settings, problem.outputs))
    chosen = {"part": best.part, "round": best.round}
    weights = count_trained(*parts)
    account = joined_account(accounts, chosen=chosen, tried=tried, notes=notes, trained_weights=weights)
    return Fitted(settings, arrays, facts, account, state=(reader, bank))


def _read_by(best: Answer, settings: GlemSettings) -> int:
    """Return the round of the language model whose vectors an answer is made of."""
    behind = best.part == "graph" and best.round > 0 and settings.order == "graph_first"
    return best.round - 1 if behind else best.round


def predict(fitted: Fitted, instances: Instances) -> Logits:
    """Read the prompts and, where the graph predicts, link them to the training instances."""
    settings, facts = fitted.settings, fitted.facts
    reader, bank = fitted.state
    own = reader.vectors(prompts_of(reader.backbone, instances, settings.max_tokens))
    if facts["part"] == "language":
        with torch.no_grad():
            logits: Tensor = reader.head(own)
    else:
        arrays = below(fitted.arrays, "graph.")
        network = opened_graph(arrays, settings, facts["outputs"])
        linked = FixedPropagation.of_graph(bank.extended_graph(instances))
        logits = logits_of_linked(network, torch.from_numpy(bank.embeddings), own, linked)
    found: Logits = logits.double().numpy()
    return found


def save(fitted: Fitted, folder: Path) -> None:
    """Write weights and facts, and the training instances that newcomers are linked to."""
    write_fitted(fitted, folder)
    fitted.state[1].save(folder / "bank")


def load(run: Run) -> Fitted:
    """Open what was kept."""
    fitted = read_fitted(SYSTEM, run)
    reader = new_reader(fitted.settings, fitted.facts["outputs"], fitted.facts["backbone_sha256"])
    load_weights(reader, below(fitted.arrays, "language."))
    run.verify("bank/")
    return replace(fitted, state=(reader.eval(), Bank.load(run.folder / "bank")))


SYSTEM = System(
    name="glem",
    description="a language model and a graph network that teach each other by soft labels, in turns",
    settings=GlemSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    title=lambda settings: f"GLEM[{settings.mode}]",
    stages=lambda settings: {"language": settings.epochs + settings.iterations * settings.em_epochs},
    fit=fit,
    predict=predict,
    save=save,
    load=load,
)
