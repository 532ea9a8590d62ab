"""Settings from outside: what is accepted is what was given."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from patients_like_me.errors import PlmError
from patients_like_me.settings import changes_from_words, checked


class Inner(BaseModel):
    on: bool = False
    sizes: tuple[int, ...] = ()


class Outer(BaseModel):
    size: int = 1
    share: float | None = None
    inner: Inner = Inner()


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("size=true", "size=true is not possible: input should be a number"),
        ("inner.on=1", "inner.on=1 is not possible: input should be true or false"),
        ("inner.sizes=[1,false]", "inner.sizes=false is not possible: input should be a number"),
        ("share=Infinity", "share=Infinity is not possible: input should be a number that a computer counts to"),
        ("share=NaN", "share=NaN is not possible: input should be a number that a computer counts to"),
        ("size=9223372036854775808", "size=9223372036854775808 is not possible"),
    ],
)
def test_a_value_of_another_kind_is_not_bent(word: str, sentence: str) -> None:
    with pytest.raises(PlmError, match=sentence.replace("[", r"\[")):
        checked(Outer, **changes_from_words([word]))


def test_values_are_kept() -> None:
    words = ["size=3.0", "share=0.5", "inner.on=true", "inner.sizes=[4,5]"]
    assert checked(Outer, **changes_from_words(words)) == Outer(size=3, share=0.5, inner=Inner(on=True, sizes=(4, 5)))
