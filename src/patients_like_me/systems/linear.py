"""``linear``: the own path of the method alone, u = c + V b + L l + W o, with one ridge penalty per block of inputs.

b is the bag of codes, demographics, counts and places; l the answer of the visit before with a flag "has history",
where the task tells what was known of it; s given scores, such as a hospital's own; o the embedding of a language
model, frozen or trained through this path (:mod:`.trained_embeddings`), where one is asked for. With b alone it is
logistic regression, with l alone ``repeat``. One penalty per block is chosen on validation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from patients_like_me.errors import PlmError
from patients_like_me.model.settings import BackboneSettings
from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.bags import BagSettings, bag_of, bag_with
from patients_like_me.systems.contract import Account, Fitted, RunContext, System, SystemSettings
from patients_like_me.systems.frozen_embeddings import embeddings_of
from patients_like_me.systems.given_scores import given_scores, scales_of, scored
from patients_like_me.systems.problem import Logits, Problem
from patients_like_me.systems.repeat import SYSTEM as REPEAT
from patients_like_me.systems.repeat import earlier_answers
from patients_like_me.tasks.instances import Instances, Rows

if TYPE_CHECKING:
    from patients_like_me.systems.reference_path.own_path import OwnPath

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class LinearSettings(SystemSettings):
    """Penalised linear terms on blocks of inputs."""

    bag: BagSettings = BagSettings(places=True)
    use_bag: bool = Field(True, description="use the bag; without it, given scores or an embedding stand alone")
    scores: tuple[str, ...] = Field(
        (), description="names in the cohort's labels table whose numbers are inputs, such as a hospital's own score"
    )
    last_answer: bool = Field(True, description="use the answer of the visit before, where the task knows it")
    language_model: Literal["none", "frozen", "trained"] = Field(
        "none", description="the embedding of the prompt by a language model: none, as it is, or trained through u"
    )
    embedder: BackboneSettings = Field(
        BackboneSettings(trainable_layers=0), description="the language model whose embeddings are used"
    )
    max_tokens: int = Field(256, ge=8, description="longest prompt in tokens")
    penalties: tuple[Positive, ...] = Field(
        (30.0, 10.0, 3.0, 1.0), min_length=1, description="ridge penalties of all blocks that are tried on validation"
    )
    block_factors: tuple[Positive, ...] = Field(
        (5.0,), description="by these the penalty of one block at a time is multiplied afterwards"
    )
    fixed_penalties: tuple[Positive, ...] | None = Field(
        None, description="one penalty per block (bag, last answer, scores, embedding) that is used without a search"
    )
    steps: int = Field(60, ge=1, description="most steps of the optimiser")
    trained_layers: int = Field(1, ge=1, description="trained: how many of the last layers are trained")
    in_folds: Literal["fitted", "frozen"] = Field(
        "fitted", description="trained: in a fold the language model is fitted too, or left as it is, which costs less"
    )
    epochs: int = Field(3, ge=0, description="trained: most epochs; validation chooses one, 0 is the frozen model")
    fixed_epochs: int | None = Field(None, ge=0, description="trained: this number of epochs, without a choice")
    batch_size: int = Field(16, ge=1, description="trained: prompts per step")
    backbone_rate: Positive = Field(1e-4, description="trained: learning rate of the language model")
    rate: Positive = Field(1e-3, description="trained: learning rate of W")

    @property
    def tuned_embedder(self) -> BackboneSettings:
        """The language model with its trained layers."""
        return self.embedder.model_copy(update={"trainable_layers": self.trained_layers})


def fit(problem: Problem, run: RunContext) -> Fitted:
    """Choose the penalties on validation and keep that fit."""
    from patients_like_me.systems.reference_path.own_path import choose_penalties, fit_own_path

    settings: LinearSettings = run.settings
    exclusive = problem.kind.adds_up
    bag = bag_of(problem.instances, problem.train, settings.bag)
    run.report("preparing the inputs of the linear own path")
    facts: dict[str, Any] = {"features": list(bag.features)}
    if settings.scores:
        facts["scores"] = scales_of(given_scores(problem.instances, settings.scores), np.sort(problem.train))
    blocks = _blocks(problem.instances, bag.values, problem.outputs, settings, facts.get("scores"), run.cache)
    if not blocks:
        raise PlmError("the own path has no inputs", remedy="use the bag, a score, the last answer or an embedding")
    targets = np.zeros((len(problem.instances), problem.outputs), np.float32)
    targets[problem.train] = problem.targets
    # In one order, so that no sum depends on the order in which training instances are given.
    train = np.sort(problem.train)
    offset = None if problem.offset is None else problem.offset[np.argsort(problem.train)]

    def score(logits: Any) -> float:
        value = problem.judge(problem.kind.probabilities(logits.astype(np.float64)))
        return -np.inf if value is None else value

    tried = []
    if settings.fixed_penalties is None:
        run.report("choosing the penalties of the linear own path")
        search = choose_penalties(
            blocks,
            targets,
            train,
            problem.validation,
            score,
            exclusive=exclusive,
            grid=settings.penalties,
            factors=settings.block_factors,
            steps=settings.steps,
        )
        path, penalties = search.path, search.penalties
        tried = [
            {"penalties": list(each), "validation_score": None if value == -np.inf else value}
            for each, value in search.trials
        ]
    else:
        penalties = settings.fixed_penalties
        if len(penalties) != len(blocks):
            raise PlmError(
                f"fixed_penalties has {len(penalties)} values, the own path has {len(blocks)} blocks of inputs here",
                remedy="give one penalty per block: bag, last answer where the task has one, embedding if asked for",
            )
        seen = [block[train] for block in blocks]
        path = fit_own_path(seen, targets[train], penalties, exclusive=exclusive, offset=offset, steps=settings.steps)
    chosen: dict[str, Any] = {"penalties": list(penalties)}
    layers: Mapping[str, Any] = {}
    if settings.language_model == "trained":
        path, layers, epochs = _trained(problem, run, blocks, path, penalties[-1], targets[train], train, score)
        chosen["epochs"] = epochs[0]
        tried += epochs[1]
    arrays = {"bias": path.bias, **{f"weights.{number}": weights for number, weights in enumerate(path.weights)}}
    return Fitted(settings, {**arrays, **layers}, facts, Account(chosen=chosen, tried=tried))


def _trained(
    problem: Problem,
    run: RunContext,
    blocks: list[Any],
    path: OwnPath,
    penalty: float,
    targets: Any,
    train: Rows,
    score: Callable[[Any], float],
) -> tuple[OwnPath, Mapping[str, Any], tuple[int, list[dict[str, Any]]]]:
    """Train the language model through the fitted path; return path, trained layers, and the epochs with scores."""
    from patients_like_me.systems.reference_path.own_path import OwnPath
    from patients_like_me.systems.trained_embeddings import Schedule, train_layers

    settings: LinearSettings = run.settings
    fixed = settings.fixed_epochs
    rows = train, problem.validation
    # u without W o: with W of 0 it is what all other blocks say.
    wide = OwnPath(path.bias, (*path.weights[:-1], np.zeros_like(path.weights[-1])))
    offsets = [wide.logits([block[some] for block in blocks]) for some in rows]
    if problem.offset is not None:
        offsets[0] = offsets[0] + problem.offset[np.argsort(problem.train)]
    before = score(path.logits([block[problem.validation] for block in blocks]))
    if not (settings.epochs if fixed is None else fixed):
        return path, {}, (0, [{"epochs": 0, "validation_score": None if before == -np.inf else before}])
    schedule = Schedule(
        settings.epochs, settings.batch_size, settings.backbone_rate, settings.rate, penalty, settings.seed, fixed
    )
    found = train_layers(
        problem.instances, settings.tuned_embedder, settings.max_tokens, rows, (offsets[0], offsets[1]), targets,
        path.weights[-1], score, schedule, exclusive=problem.kind.adds_up,
        cache=run.cache, report=run.report,
    )  # fmt: skip
    tried: list[dict[str, float | None]] = [{"epochs": 0, "validation_score": before}]
    tried += [{"epochs": each.epoch, "validation_score": each.score} for each in found]
    for each in tried:
        each["validation_score"] = None if each["validation_score"] == -np.inf else each["validation_score"]
    best = max(found, key=lambda each: each.score, default=None)
    if fixed is not None:
        best = next((each for each in found if each.epoch == fixed), None)
    elif best is not None and best.score <= before:
        best = None
    if best is None:
        return path, {}, (0, tried)
    return OwnPath(path.bias, (*path.weights[:-1], best.weights)), best.layers, (best.epoch, tried)


def predict(fitted: Fitted, instances: Instances) -> Logits:
    """Return u."""
    from patients_like_me.systems.reference_path.own_path import OwnPath

    bag = bag_with(instances, fitted.facts["features"], fitted.settings.bag)
    bias = fitted.arrays["bias"]
    layers = {name: value for name, value in fitted.arrays.items() if name.startswith("lm.")}
    blocks = _blocks(instances, bag.values, len(bias), fitted.settings, fitted.facts.get("scores"), layers=layers)
    path = OwnPath(bias, tuple(fitted.arrays[f"weights.{number}"] for number in range(len(blocks))))
    logits: Logits = path.logits(blocks).astype(np.float64)
    return logits


def _blocks(
    instances: Instances,
    bag: Any,
    outputs: int,
    settings: LinearSettings,
    scales: Sequence[Sequence[float]] | None = None,
    cache: Path | None = None,
    layers: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Return the blocks b, l, s, o of all instances, as far as there are any; ``layers`` are trained ones."""
    blocks = [bag.astype(np.float32)] if settings.use_bag else []
    if settings.last_answer and REPEAT.serves(instances.task):
        blocks.append(_last_answers(instances, outputs))
    if scales is not None:
        blocks.append(scored(given_scores(instances, settings.scores), scales))
    if layers:
        from patients_like_me.systems.trained_embeddings import embeddings_by

        blocks.append(embeddings_by(layers, instances, settings.tuned_embedder, settings.max_tokens))
    elif settings.language_model != "none":
        to_train = settings.trained_layers if settings.language_model == "trained" else 0
        blocks.append(embeddings_of(instances, settings.embedder, settings.max_tokens, cache, layers_to_train=to_train))
    return blocks


def _last_answers(instances: Instances, outputs: int) -> Any:
    """Return the answer of the visit before [N, outputs], 0 where there is none, and the flag "has history"."""
    from scipy.sparse import csr_array

    answers = earlier_answers(instances, outputs)
    known = ~np.isnan(answers[:, :1])
    return csr_array(np.concatenate([np.nan_to_num(answers), known], axis=1).astype(np.float32))


def _settled_for_all(settings: LinearSettings, chosen: Mapping[str, Any]) -> LinearSettings:
    """Return settings with the penalties and the epochs that were chosen; the language model is still trained."""
    changes: dict[str, Any] = {"fixed_penalties": tuple(chosen["penalties"])}
    if settings.language_model == "trained":
        changes["fixed_epochs"] = chosen["epochs"]
    return settings.model_copy(update=changes)


def _settled(settings: LinearSettings, chosen: Mapping[str, Any]) -> LinearSettings:
    """Return the same for a fold, which may leave the language model as it is."""
    found = _settled_for_all(settings, chosen)
    if settings.language_model == "trained" and (settings.in_folds == "frozen" or not chosen["epochs"]):
        found = found.model_copy(update={"language_model": "frozen"})
    return found


SYSTEM = System(
    name="linear",
    description="penalised linear terms on the bag, the answer of the visit before and a language model",
    settings=LinearSettings,
    capabilities=Capabilities(newcomers=True),
    fit=fit,
    predict=predict,
    settled=_settled,
    settled_for_all=_settled_for_all,
)
