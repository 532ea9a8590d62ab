"""``linear``: the own path of the method alone, u = c + V b + L l + W o, with one ridge penalty per block of inputs.

b is the bag of codes, demographics, counts and places; l the answer of the visit before with a flag "has history",
where the task tells what was known of it; o the embedding of a frozen language model, where one is asked for. With b
alone it is logistic regression, with l alone ``repeat``. One penalty per block is chosen on validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from patients_like_me.model.settings import BackboneSettings
from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.bags import BagSettings, bag_of, bag_with
from patients_like_me.systems.contract import Account, Fitted, RunContext, System, SystemSettings
from patients_like_me.systems.frozen_embeddings import embeddings_of
from patients_like_me.systems.problem import Logits, Problem
from patients_like_me.systems.repeat import SYSTEM as REPEAT
from patients_like_me.systems.repeat import earlier_answers
from patients_like_me.tasks.instances import Instances

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class LinearSettings(SystemSettings):
    """Penalised linear terms on blocks of inputs."""

    bag: BagSettings = BagSettings(places=True)
    last_answer: bool = Field(True, description="use the answer of the visit before, where the task knows it")
    language_model: Literal["none", "frozen"] = Field(
        "none", description="frozen: the embedding of the prompt by a language model that is not trained"
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
        None, description="one penalty per block (bag, last answer, embedding) that is used without a search"
    )
    steps: int = Field(60, ge=1, description="most steps of the optimiser")


def fit(problem: Problem, run: RunContext) -> Fitted:
    """Choose the penalties on validation and keep that fit."""
    from patients_like_me.systems.reference_path.own_path import choose_penalties, fit_own_path

    settings: LinearSettings = run.settings
    exclusive = problem.kind.adds_up
    bag = bag_of(problem.instances, problem.train, settings.bag)
    run.report("preparing the inputs of the linear own path")
    blocks = _blocks(problem.instances, bag.values, problem.outputs, settings)
    targets = np.zeros((len(problem.instances), problem.outputs), np.float32)
    targets[problem.train] = problem.targets
    # In one order, so that no sum depends on the order in which training instances are given.
    train = np.sort(problem.train)

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
        seen = [block[train] for block in blocks]
        path = fit_own_path(seen, targets[train], penalties, exclusive=exclusive, steps=settings.steps)
    arrays = {"bias": path.bias, **{f"weights.{number}": weights for number, weights in enumerate(path.weights)}}
    account = Account(chosen={"penalties": list(penalties)}, tried=tried)
    return Fitted(settings, arrays, {"features": list(bag.features)}, account)


def predict(fitted: Fitted, instances: Instances) -> Logits:
    """Return u."""
    from patients_like_me.systems.reference_path.own_path import OwnPath

    bag = bag_with(instances, fitted.facts["features"], fitted.settings.bag)
    bias = fitted.arrays["bias"]
    blocks = _blocks(instances, bag.values, len(bias), fitted.settings)
    path = OwnPath(bias, tuple(fitted.arrays[f"weights.{number}"] for number in range(len(blocks))))
    logits: Logits = path.logits(blocks).astype(np.float64)
    return logits


def _blocks(instances: Instances, bag: Any, outputs: int, settings: LinearSettings) -> list[Any]:
    """Return the blocks b, l, o of all instances, as far as there are any."""
    blocks = [bag.astype(np.float32)]
    if settings.last_answer and instances.task.name in REPEAT.tasks:
        blocks.append(_last_answers(instances, outputs))
    if settings.language_model == "frozen":
        blocks.append(embeddings_of(instances, settings.embedder, settings.max_tokens))
    return blocks


def _last_answers(instances: Instances, outputs: int) -> Any:
    """Return the answer of the visit before [N, outputs], 0 where there is none, and the flag "has history"."""
    from scipy.sparse import csr_array

    answers = earlier_answers(instances, outputs)
    known = ~np.isnan(answers[:, :1])
    return csr_array(np.concatenate([np.nan_to_num(answers), known], axis=1).astype(np.float32))


def _settled(settings: LinearSettings, chosen: Mapping[str, Any]) -> LinearSettings:
    return settings.model_copy(update={"fixed_penalties": tuple(chosen["penalties"])})


SYSTEM = System(
    name="linear",
    description="penalised linear terms on the bag, the answer of the visit before and a frozen language model",
    settings=LinearSettings,
    capabilities=Capabilities(newcomers=True),
    fit=fit,
    predict=predict,
    settled=_settled,
)
