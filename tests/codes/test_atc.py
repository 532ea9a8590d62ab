"""ATC-3 names and hierarchy."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from patients_like_me.codes.atc import (
    ANATOMICAL_GROUPS,
    all_atc3_codes,
    anatomical_group,
    atc3_name,
)
from patients_like_me.errors import PlmError


def test_every_code_has_the_shape_of_an_atc3_code_a_group_and_a_name_of_its_own() -> None:
    codes = all_atc3_codes()
    assert len(codes) >= 265
    assert list(codes) == sorted(set(codes))
    assert all(re.fullmatch(r"[A-Z]\d\d[A-Z]", code) for code in codes)
    assert {anatomical_group(code) for code in codes} == set(ANATOMICAL_GROUPS.values())
    names = [atc3_name(code) for code in codes]
    assert len(set(names)) == len(names)
    assert all(name == name.strip() and 4 <= len(name) <= 60 for name in names)


@pytest.mark.parametrize(
    ("code", "name"), [("A10A", "Insulins"), ("C03C", "Loop diuretics"), ("B03A", "Iron"), ("J01C", "Penicillins")]
)
def test_familiar_codes_have_familiar_names(code: str, name: str) -> None:
    assert atc3_name(code) == name


@pytest.mark.parametrize("wrong", ["", "C03", "C03CA01", "c03c", "C03Z", "Z99Z"])
def test_a_wrong_code_is_named_in_the_error(wrong: str) -> None:
    with pytest.raises(PlmError, match=f"'{wrong}'"):
        atc3_name(wrong)


@pytest.mark.parametrize("wrong", ["", "Z01A", "3"])
def test_a_code_outside_all_groups_is_an_error(wrong: str) -> None:
    with pytest.raises(PlmError, match="not begin with an anatomical group"):
        anatomical_group(wrong)


def test_no_code_is_missing_or_invented(shared_data: Path) -> None:
    with (shared_data / "codes" / "atc_names_L1-L4.csv").open(encoding="utf-8", newline="") as stream:
        expected = {row["atc"] for row in csv.DictReader(stream) if row["level"] == "3"}
    assert set(all_atc3_codes()) == expected


def test_the_codes_of_known_benchmarks_are_all_there(shared_data: Path) -> None:
    vocabulary = json.loads((shared_data / "codes" / "gamenet_atc_vocab.json").read_text(encoding="utf-8"))
    wanted = {code for code in vocabulary if re.fullmatch(r"[A-Z]\d\d[A-Z]", code)}
    assert len(wanted) > 100
    assert wanted <= set(all_atc3_codes())
