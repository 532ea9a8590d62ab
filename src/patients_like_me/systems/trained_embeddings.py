"""The E-step of the own path: a language model whose last layers are trained through u = offset + W o.

Everything of the own path but W stays as it is and enters as an offset: the bag and the last answer keep what they
explain, and the language model learns what they leave. It starts as the frozen model with its W, so epoch 0 is the
frozen own path; validation chooses the epoch. The layers below the trained ones are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from patients_like_me.model.settings import BackboneSettings
from patients_like_me.systems.frozen_embeddings import LENGTH, Embeddings
from patients_like_me.tasks.instances import Instances, Rows

if TYPE_CHECKING:
    from patients_like_me.model.hidden_state_cache import HiddenStateCache

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Schedule:
    """How the last layers are trained; ``backbone_rate`` is theirs, ``rate`` that of W.

    Rates fall to 0 over all ``epochs``; ``stop_after`` ends earlier, with the rates of the longer training.
    """

    epochs: int
    batch_size: int
    backbone_rate: float
    rate: float
    penalty: float
    seed: int
    stop_after: int | None = None


@dataclass(frozen=True)
class TrainedEpoch:
    """What is known after an epoch: the trained layers by name, W, and the score on validation."""

    epoch: int
    layers: Mapping[str, Array]
    weights: Array
    score: float


class TunedBackbone:
    """A language model whose last layers can be set; what is below them is kept between calls."""

    def __init__(self, settings: BackboneSettings) -> None:
        from patients_like_me.model.devices import best_device
        from patients_like_me.model.loading import load_backbone
        from patients_like_me.training.optimisation import parameter_tensors

        self.backbone: Any = load_backbone(settings)
        self.backbone.to(best_device())
        self.first = parameter_tensors(self.backbone.trained_parameters(), "lm")
        self.cache: Path | None = None

    def put(self, layers: Mapping[str, npt.NDArray[Any]] | None) -> None:
        """Set the trained layers; None: as they were loaded."""
        import torch

        from patients_like_me.training.optimisation import restore_parameters

        # Copies: arrays that were read from a file cannot be written to, which torch warns about.
        kept = {} if layers is None else {name: torch.from_numpy(np.array(value)) for name, value in layers.items()}
        tensors = self.first if layers is None else kept
        restore_parameters(self.backbone.trained_parameters(), tensors, "lm")
        self.backbone.train(False)

    def inputs(self, instances: Instances, max_tokens: int) -> Any:
        """Return the prompts at the level where training begins."""
        from patients_like_me.model.hidden_state_cache import HiddenStateCache
        from patients_like_me.model.prompt_inputs import prepare_inputs
        from patients_like_me.tasks.prompts import write_prompts

        budget = min(max_tokens, self.backbone.max_tokens)
        texts = write_prompts(instances, self.backbone.count_tokens, budget=budget).texts
        kept = None if self.cache is None else HiddenStateCache(self.cache)
        return prepare_inputs(self.backbone, texts, max_tokens=budget, cache=kept)

    def untrained(self, texts: Sequence[str], budget: int, cache: HiddenStateCache) -> Embeddings:
        """Return the vectors of prompts by the layers as they were loaded; what is below those to train is kept."""
        from patients_like_me.model.embedding import read_prompts
        from patients_like_me.model.prompt_inputs import prepare_inputs

        self.put(None)
        inputs = prepare_inputs(self.backbone, texts, max_tokens=budget, cache=cache)
        vectors: Embeddings = read_prompts(self.backbone, inputs, precision="float32").numpy()
        return vectors

    def embed(self, inputs: Any, rows: Rows) -> Embeddings:
        """Return the embeddings of some prompts, each of the same length."""
        from patients_like_me.model.embedding import read_prompts

        found: Embeddings = scaled(read_prompts(self.backbone, inputs, rows, precision="float32")).numpy()
        return found


def scaled(pooled: Any) -> Any:
    """Return vectors (a tensor [B, W]) of the length that all embeddings have."""
    return LENGTH * pooled / pooled.norm(dim=1, keepdim=True).clamp_min(1e-12)


@lru_cache(maxsize=1)
def tuned(settings: BackboneSettings) -> TunedBackbone:
    """Return the language model of some settings, loaded once."""
    return TunedBackbone(settings)


def embeddings_by(
    layers: Mapping[str, npt.NDArray[Any]], instances: Instances, settings: BackboneSettings, max_tokens: int
) -> Embeddings:
    """Return the embeddings of the instances' prompts by trained layers."""
    model = tuned(settings)
    model.put(layers)
    return model.embed(model.inputs(instances, max_tokens), np.arange(len(instances)))


def train_layers(
    instances: Instances,
    settings: BackboneSettings,
    max_tokens: int,
    rows: tuple[Rows, Rows],
    offsets: tuple[Array, Array],
    targets: Array,
    weights: Array,
    judge: Callable[[Array], float],
    schedule: Schedule,
    *,
    exclusive: bool,
    cache: Path | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Sequence[TrainedEpoch]:
    """Train the last layers and W on the first ``rows``; return every epoch with its score on the second ones.

    ``offsets`` are u without W o for both; ``judge`` scores logits of the second rows. Nothing of them is learnt.
    """
    import torch
    from torch.nn import functional

    from patients_like_me.model.batching import shuffled_batches
    from patients_like_me.model.randomness import mixed_seed, seeded
    from patients_like_me.training.optimisation import as_array, parameter_tensors, set_rates

    model = tuned(settings)
    model.cache = cache
    model.put(None)
    backbone, inputs = model.backbone, model.inputs(instances, max_tokens)
    head = torch.nn.Parameter(torch.from_numpy(weights.astype(np.float32)).to(backbone.device))
    groups = [
        {"params": list(backbone.trained_parameters().values()), "rate": schedule.backbone_rate},
        {"params": [head], "rate": schedule.rate, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW([{**group, "lr": group["rate"]} for group in groups], weight_decay=0.01)
    train, wanted = rows
    offset, truth = (torch.from_numpy(np.ascontiguousarray(each, np.float32)) for each in (offsets[0], targets))
    lengths = inputs.lengths[train]
    found: list[TrainedEpoch] = []
    total, step = schedule.epochs * -(-len(train) // schedule.batch_size), 0
    last = schedule.epochs if schedule.stop_after is None else schedule.stop_after
    for epoch in range(1, last + 1):
        report(f"training the language model, epoch {epoch} of {schedule.epochs}")
        backbone.train(True)
        generator = np.random.default_rng(mixed_seed(schedule.seed, epoch))
        for number, batch in enumerate(shuffled_batches(lengths, schedule.batch_size, generator)):
            with seeded(schedule.seed, epoch, number):
                pooled = scaled(backbone(inputs.batch(train[batch], device=backbone.device)))
            logits = offset[batch].to(pooled.device) + pooled @ head
            aims = truth[batch].to(pooled.device)
            if exclusive:
                loss = -(functional.log_softmax(logits, dim=1) * aims).sum() / len(batch)
            else:
                loss = functional.binary_cross_entropy_with_logits(logits, aims, reduction="sum") / len(batch)
            loss = loss + 0.5 * schedule.penalty * (head**2).sum() / len(train)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            set_rates(optimizer, 1.0 - step / total)
            optimizer.step()
            step += 1
        backbone.train(False)
        trained = head.detach().cpu().numpy().copy()
        layers = {
            name: as_array(value) for name, value in parameter_tensors(backbone.trained_parameters(), "lm").items()
        }
        score = judge(offsets[1] + model.embed(inputs, wanted) @ trained)
        found.append(TrainedEpoch(epoch, layers, trained, score))
    return found
