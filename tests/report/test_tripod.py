"""The list of TRIPOD+AI items is whole: 27 items, 52 with their parts, each once."""

from __future__ import annotations

import re

from patients_like_me.report.tripod import ITEMS


def test_all_items_are_there_once_and_in_order() -> None:
    numbers = [item.number for item in ITEMS]
    assert len(set(numbers)) == len(numbers) == 52
    assert {int(re.match(r"\d+", number).group()) for number in numbers} == set(range(1, 28))  # type: ignore[union-attr]
    keys = [(int(re.sub(r"\D", "", number)), re.sub(r"\d", "", number)) for number in numbers]
    assert keys == sorted(keys)
    assert all(item.topic for item in ITEMS)
