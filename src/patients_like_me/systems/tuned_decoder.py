"""A generative decoder with low-rank adapters that learns to answer with a label, and to give reasons.

Only the adapters are part of the network's state. The score of a class is the log-probability of its label's tokens as
the answer to the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

import torch
from torch import Tensor, nn

from patients_like_me.errors import PlmError
from patients_like_me.model.llm.decoder import LanguageHeadModel, load_language_head_model
from patients_like_me.model.randomness import seeded
from patients_like_me.model.tuning import ADAPTED_MATRICES
from patients_like_me.tasks.instances import Rows

#: As of every adapter here (docs/backbones.md).
_DROPOUT: Final = 0.1


def labels_in_words(outputs: int) -> list[str]:
    """Return the answers that stand for the classes: their numbers.

    >>> labels_in_words(1), labels_in_words(3)
    (['0', '1'], ['0', '1', '2'])
    """
    return [str(number) for number in range(max(2, outputs))]


class TunedDecoder(nn.Module):
    """Adapters of one decoder, for labels as answers."""

    def __init__(self, name: str, outputs: int, *, rank: int, alpha: float, seed: int) -> None:
        super().__init__()
        from peft import LoraConfig, inject_adapter_in_model

        held = load_language_head_model(name)
        held.model.requires_grad_(False)
        targets = list(ADAPTED_MATRICES)
        configuration = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=_DROPOUT, target_modules=targets, bias="none")  # type: ignore[arg-type]
        with seeded(seed):
            inject_adapter_in_model(configuration, held.model)
        trained = {name: value for name, value in held.model.named_parameters() if value.requires_grad}
        if not trained:
            raise PlmError(f"the decoder '{name}' has no matrix for adapters", remedy="choose another decoder")
        self.tuned = nn.ParameterDict({name.replace(".", "/"): value for name, value in trained.items()})
        # In a tuple the decoder is not a submodule: its frozen weights stay out of what is kept.
        self._held = (held,)
        self.outputs = outputs
        self.labels = [held.answer_ids(label) for label in labels_in_words(outputs)]

    @property
    def decoder(self) -> LanguageHeadModel:
        """The language model."""
        return self._held[0]

    def train(self, mode: bool = True) -> Self:
        """Switch the dropout of the adapters."""
        super().train(mode)
        self.decoder.model.train(mode)
        return self

    def logits_of(self, prompts: Sequence[list[int]], rows: Rows, *, at_once: int = 4) -> Tensor:
        """Return logits [rows, outputs]: log-odds of the second label, or the log-probabilities of all."""
        parts = []
        for first in range(0, len(rows), at_once):
            chosen = [prompts[row] for row in rows[first : first + at_once]]
            parts.append(self.decoder.label_logprobs(chosen, self.labels))
        logs = torch.cat(parts)
        return logs[:, 1:2] - logs[:, 0:1] if self.outputs == 1 else logs

    def losses(self, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> Tensor:
        """Return the mean negative log-likelihood of each answer."""
        return self.decoder.losses(prompts, answers)

    def label_answers(self, targets: Tensor) -> list[list[int]]:
        """Return the answers that targets [B, outputs] ask for."""
        numbers = targets[:, 0].long() if self.outputs == 1 else targets.argmax(dim=1)
        return [self.labels[int(number)] for number in numbers]


def prompt_ids(decoder: LanguageHeadModel, texts: Sequence[str], longest: int) -> list[list[int]]:
    """Return the tokens of prompts, with room for an answer."""
    return [decoder.prompt_ids(text, longest_prompt(decoder, longest)) for text in texts]


def longest_prompt(decoder: LanguageHeadModel, longest: int) -> int:
    """Return how many tokens a prompt may have, with its frame."""
    return min(longest, decoder.max_tokens - 16)
