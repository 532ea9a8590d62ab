"""What the model reads: the prompts at the level where training begins, in batches.

Token ids when every layer learns, kept hidden states when the lower layers are frozen, kept pooled vectors when the
whole backbone is frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.model.backbone import Backbone, Batch, Level
from patients_like_me.model.batching import Integers, TokenizedPrompts, reading_batches
from patients_like_me.model.hidden_state_cache import CachedStates, HiddenStateCache
from patients_like_me.plain_text import counted

#: The paper's longest input.
PAPER_MAX_TOKENS = 512


@dataclass(frozen=True)
class PromptInputs:
    """All prompts of one set of instances, ready to be batched; row n is instance n.

    ``note`` says in one sentence what is kept, or why nothing is.
    """

    prompts: TokenizedPrompts
    level: Level
    states: CachedStates | None = None
    pooled: Tensor | None = None
    note: str = field(default="", compare=False)

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def lengths(self) -> Integers:
        """Return the number of tokens of each prompt."""
        return self.prompts.lengths

    def batch(self, rows: Integers, *, device: torch.device | str = "cpu") -> Batch:
        """Return the batch of these rows, padded to the longest of them."""
        numbers = torch.from_numpy(rows.astype("int64"))
        if self.pooled is not None:
            return Batch("pooled", self.pooled[numbers], torch.ones(len(rows), 1, dtype=torch.bool), numbers).to(device)
        if self.states is None:
            ids, mask = self.prompts.padded(rows)
            return Batch("tokens", ids, mask, numbers).to(device)
        states, mask = self.states.gather(rows)
        if self.level == "pooled":
            return Batch("pooled", states[:, 0], mask, numbers).to(device)
        return Batch("hidden", states, mask, numbers).to(device)


def prepare_inputs(
    backbone: Backbone,
    texts: Sequence[str],
    *,
    max_tokens: int = PAPER_MAX_TOKENS,
    cache: HiddenStateCache | None = None,
    progress: Callable[[int], None] | None = None,
    multiple: int = 1,
) -> PromptInputs:
    """Tokenise the texts and compute, once, all that the trained part does not change.

    Without a cache folder the frozen layers run in every epoch; the results are the same. Batches are padded to a
    ``multiple`` of tokens.
    """
    ids = backbone.token_ids(texts, max_tokens=max_tokens)
    prompts = TokenizedPrompts.from_lists(ids, multiple=multiple, longest=backbone.max_tokens)
    return inputs_of_tokens(backbone, prompts, cache=cache, progress=progress)


def inputs_of_tokens(
    backbone: Backbone,
    prompts: TokenizedPrompts,
    *,
    cache: HiddenStateCache | None = None,
    progress: Callable[[int], None] | None = None,
) -> PromptInputs:
    """Return the inputs of prompts that are tokenised already; see :func:`prepare_inputs`."""
    highest = int(prompts.ids.max(initial=0))
    if highest >= backbone.stack.config.vocab_size:
        raise PlmError(
            f"the tokenizer of '{backbone.name}' made the token id {highest}, the model knows "
            f"{backbone.stack.config.vocab_size}",
            remedy="put the tokenizer that belongs to the model into its folder",
        )
    if backbone.level == "tokens":
        note = f"every layer of '{backbone.name}' is trained, so no hidden states can be kept"
        return PromptInputs(prompts, "tokens", note=note)
    layers = counted(backbone.frozen_layers, "frozen layer")
    if cache is not None and len(prompts):
        states = cache.fill(backbone, prompts, progress=progress)
        kept = "pooled vectors" if backbone.level == "pooled" else f"the output of {layers}"
        return PromptInputs(prompts, backbone.level, states=states, note=f"{kept} kept in '{cache.folder}'")
    if backbone.level == "pooled":
        note = "the backbone is frozen: its pooled vectors are computed once and kept in memory"
        return PromptInputs(prompts, "pooled", pooled=pooled_vectors(backbone, prompts, progress=progress), note=note)
    note = f"no cache folder: the output of {layers} is computed in every epoch"
    return PromptInputs(prompts, "tokens", note=note)


def pooled_vectors(
    backbone: Backbone, prompts: TokenizedPrompts, *, progress: Callable[[int], None] | None = None
) -> Tensor:
    """Return one vector per prompt, [N, W], straight from the token ids: no gradient, on the CPU."""
    vectors = torch.zeros(len(prompts), backbone.width)
    with torch.inference_mode():
        for rows in reading_batches(prompts.lengths, device=backbone.device):
            ids, mask = prompts.padded(rows)
            batch = Batch("tokens", ids, mask, torch.from_numpy(rows)).to(backbone.device)
            vectors[torch.from_numpy(rows)] = backbone(batch).float().cpu()
            if progress is not None:
                progress(len(rows))
    return vectors
