"""A generative decoder in this process: a Hugging Face folder or an added backbone, with its own language head.

Weights and tokenizer come from this machine's disk under the same rules as backbones (no network, no code of a model's
repository, no pickles). A prompt goes through the tokenizer's chat template where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patients_like_me.errors import PlmError
from patients_like_me.model.backbones import locate, missing_backbone
from patients_like_me.model.families import family_of
from patients_like_me.model.llm.client import Answer
from patients_like_me.model.llm.settings import LLMSettings
from patients_like_me.model.llm.shortening import shortened
from patients_like_me.model.packaged_weights import quiet_transformers

if TYPE_CHECKING:
    from torch import Tensor


class LanguageHeadModel:
    """A causal language model with its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        self.model, self.tokenizer, self.name = model, tokenizer, name
        self.model.eval()
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token or self.tokenizer.unk_token

    @property
    def max_tokens(self) -> int:
        """The longest text that it reads."""
        return int(getattr(self.model.config, "max_position_embeddings", 2048))

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a plain text."""
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def prompt_ids(self, prompt: str, longest: int) -> list[int]:
        """Return the tokens of a prompt up to where the answer begins, at most ``longest``."""
        room = max(8, longest - self.frame_tokens)
        shown = shortened(prompt, room, self.count_tokens)
        # One word without spaces may still be too long: its last tokens are kept, where the question ends.
        return self._framed(shown)[-longest:]

    def answer_ids(self, text: str) -> list[int]:
        """Return the tokens of an answer."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    @cached_property
    def frame_tokens(self) -> int:
        """The tokens around a prompt: those of the chat template."""
        return len(self._framed("a")) - self.count_tokens("a") + 2

    def _framed(self, prompt: str) -> list[int]:
        if getattr(self.tokenizer, "chat_template", None):
            text = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
            ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            return ids
        start = [] if self.tokenizer.bos_token_id is None else [self.tokenizer.bos_token_id]
        return [*start, *self.answer_ids(f"{prompt}\nAnswer:")]

    def label_logprobs(self, prompts: Sequence[list[int]], labels: Sequence[list[int]]) -> Tensor:
        """Return the log-probability of each label's tokens after each prompt, [prompts, labels].

        Labels of one token each, the usual case, need one pass over the prompts; a gradient flows where it is wanted.
        """
        import torch

        if all(len(label) == 1 for label in labels):
            scores = self.last_scores(prompts).log_softmax(dim=-1)
            return scores[:, torch.tensor([label[0] for label in labels], device=scores.device)]
        columns = [-self.losses(prompts, [label] * len(prompts), mean=False) for label in labels]
        return torch.stack(columns, dim=1)

    def last_scores(self, prompts: Sequence[list[int]]) -> Tensor:
        """Return the scores of every token as the next one after each prompt, [prompts, vocabulary]."""
        ids, mask = self._padded(prompts)
        hidden = self.model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
        last = mask.sum(dim=1) - 1
        scores: Tensor = self.model.get_output_embeddings()(hidden[range(len(ids)), last])
        return scores.float()

    def losses(self, prompts: Sequence[list[int]], answers: Sequence[list[int]], *, mean: bool = True) -> Tensor:
        """Return the negative log-likelihood [prompts] of answers after prompts: mean or sum over their tokens."""
        import torch

        whole = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
        ids, mask = self._padded(whole)
        hidden = self.model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
        rows: list[int] = []
        places: list[int] = []
        targets: list[int] = []
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            rows += [row] * len(answer)
            places += range(len(prompt) - 1, len(prompt) + len(answer) - 1)
            targets += answer
        # Only the states before answers go through the head: a whole sequence times a vocabulary is large.
        scores = self.model.get_output_embeddings()(hidden[rows, places]).float()
        chosen = torch.tensor(targets, device=scores.device)
        losses = torch.nn.functional.cross_entropy(scores, chosen, reduction="none")
        at = torch.tensor(rows, device=scores.device)
        summed = losses.new_zeros(len(whole)).index_add(0, at, losses)
        if not mean:
            return summed
        return summed / torch.tensor([len(answer) for answer in answers], device=scores.device).clamp(min=1)

    def _padded(self, sequences: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Return token ids and mask, padded at the end, where a causal model cannot see it."""
        import torch

        longest = max(len(sequence) for sequence in sequences)
        ids = torch.full((len(sequences), longest), int(self.tokenizer.pad_token_id or 0))
        mask = torch.zeros_like(ids)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = torch.tensor(sequence)
            mask[row, : len(sequence)] = 1
        device = self.model.get_output_embeddings().weight.device
        return ids.to(device), mask.to(device)


class Decoder:
    """The back end in this process; the model is loaded with the first question."""

    def __init__(self, settings: LLMSettings) -> None:
        self.settings = settings
        if locate(settings.model) is None:
            raise missing_backbone(settings.model)

    @cached_property
    def loaded(self) -> LanguageHeadModel:
        """The model on its device."""
        return load_language_head_model(self.settings.model)

    @cached_property
    def identity(self) -> str:
        """The name of the model and the hash of its weights."""
        return f"decoder {self.settings.name} {weights_digest(self.settings.model)}"

    def complete(self, prompt: str, new_tokens: int) -> Answer:
        """Return the likeliest continuation, token by token."""
        import torch

        loaded = self.loaded
        ids = loaded.prompt_ids(prompt, min(self.settings.prompt_tokens, loaded.max_tokens - new_tokens))
        device = loaded.model.get_output_embeddings().weight.device
        with torch.no_grad(), quiet_transformers():
            found = loaded.model.generate(
                torch.tensor([ids], device=device),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long, device=device),
                max_new_tokens=new_tokens,
                do_sample=False,
                temperature=None,
                top_p=None,
                top_k=None,
                pad_token_id=loaded.tokenizer.pad_token_id,
            )[0, len(ids) :].tolist()
        return Answer(loaded.tokenizer.decode(found, skip_special_tokens=True).strip(), len(ids), len(found))

    def label_logprobs(self, prompt: str, labels: Sequence[str]) -> Answer:
        """Return the log-probability of each label after the prompt."""
        import torch

        loaded = self.loaded
        answers = [loaded.answer_ids(label) for label in labels]
        longest = loaded.max_tokens - max(map(len, answers))
        ids = loaded.prompt_ids(prompt, min(self.settings.prompt_tokens, longest))
        with torch.no_grad():
            found = loaded.label_logprobs([ids], answers)[0]
        return Answer([float(value) for value in found], len(ids), 1)

    def embed(self, text: str) -> Answer:
        """Return the mean of the last hidden states."""
        import torch

        loaded = self.loaded
        ids = loaded.answer_ids(shortened(text, self.settings.prompt_tokens, loaded.count_tokens)) or [0]
        ids = ids[: min(self.settings.prompt_tokens, loaded.max_tokens)]
        with torch.no_grad():
            device = loaded.model.get_output_embeddings().weight.device
            states = loaded.model.base_model(torch.tensor([ids], device=device)).last_hidden_state[0].float()
        return Answer([round(float(value), 6) for value in states.mean(dim=0)], len(ids))


def weights_digest(name: str) -> str:
    """Return a short hash of the files of weights."""
    place = locate(name)
    if place is None:
        raise missing_backbone(name)
    files = [(path, path.stat()) for path in sorted(place.glob("*.safetensors"))]
    return "-".join(_digest_of(path, stat.st_size, stat.st_mtime_ns)[:12] for path, stat in files)


@lru_cache(maxsize=64)
def _digest_of(path: Path, size: int, changed: int) -> str:
    """Return the digest of a file, once for a size and a time of change."""
    from patients_like_me.files import digest_of_file

    del size, changed
    return digest_of_file(path)


def load_language_head_model(name: str) -> LanguageHeadModel:
    """Load a decoder with its language head from this machine's disk."""
    place = locate(name)
    if place is None:
        raise missing_backbone(name)
    if not place.is_dir():
        raise PlmError(
            f"the decoder '{name}' is a file, not a folder", remedy=f"add it first: plm backbones add {place.name}"
        )
    model, tokenizer = _read(place, name)
    from patients_like_me.model.devices import best_device

    return LanguageHeadModel(model.to(best_device()), tokenizer, Path(name).name)


def _read(place: Path, name: str) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    offline: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(str(place), **offline)
            family = family_of(str(config.model_type), name=name)
            if family.kind != "decoder":
                raise PlmError(f"'{name}' is an encoder and writes no text", remedy="choose a decoder: plm backbones")
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                str(place), config=config, dtype="float32", use_safetensors=True, output_loading_info=True, **offline
            )
            model, report = loaded
            tokenizer = AutoTokenizer.from_pretrained(str(place), **offline)
    except PlmError:
        raise
    except Exception as error:  # whatever the libraries raise, the folder is at fault
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PlmError(
            f"the decoder in '{place}' cannot be read ({reason})", remedy="check that the folder is complete"
        ) from None
    if missing := sorted(report["missing_keys"]):
        raise PlmError(
            f"the weights in '{place}' lack {len(missing)} tensors, first '{missing[0]}'",
            remedy="give a folder with the language head, as AutoModelForCausalLM saves it",
        )
    return model, tokenizer
