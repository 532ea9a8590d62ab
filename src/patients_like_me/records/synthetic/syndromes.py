"""The clinical knowledge of the synthetic hospital, read from its JSON files into arrays.

Three lists of *items* (conditions, procedures, drug needs) and three kinds of *sources* that bring items about:
syndromes (the reason of a visit), traits (what a person carries along) and bundles (what a kind of stay brings).
A source gives an item with a probability p; as the rate -log(1 - p) several sources simply add up (noisy or).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

MOST_CERTAIN = 0.98
BUNDLES = ("every stay", "surgery", "critical illness", "last days")
CHRONIC_IN_BACKGROUND = 0.8
ACUTE_IN_BACKGROUND = 0.05
SEX_CODES = {"": 0, "F": 1, "M": 2}


@dataclass(frozen=True)
class Items:
    """Hold one kind of item: names, how they behave, and the texts (codes or drug names) each can take.

    ``first_text[i]`` to ``first_text[i + 1]`` are the positions of item i's texts in ``texts``;
    ``cumulative[i, j]`` is the chance that text j or an earlier one is taken.
    """

    names: tuple[str, ...]
    persists: Floats
    severity: Floats
    sex: Integers
    staged: Booleans
    first_text: Integers
    cumulative: Floats
    texts: tuple[tuple[str, ...], ...]

    def index_of(self, name: str) -> int:
        """Return the position of an item by its name."""
        return self.names.index(name)


@dataclass(frozen=True)
class Syndromes:
    """Hold the courses of all syndromes, one array entry per syndrome."""

    names: tuple[str, ...]
    numbers: Mapping[str, Floats]
    companions: Floats
    principal: Floats

    def __getitem__(self, name: str) -> Floats:
        """Return one course number, such as ``returns``, for all syndromes."""
        return self.numbers[name]


@dataclass(frozen=True)
class Traits:
    """Hold how common each trait is by age, sex and severity (log-odds)."""

    names: tuple[str, ...]
    log_odds_at_65: Floats
    per_decade: Floats
    male: Floats
    severity: Floats
    sex: Integers


@dataclass(frozen=True)
class Knowledge:
    """Gather items, sources and the rates at which sources bring items about.

    The rows of a rate matrix are: syndromes as the reason of the visit, syndromes in the background, traits,
    bundles (in the order of ``BUNDLES``).
    """

    syndromes: Syndromes
    traits: Traits
    conditions: Items
    procedures: Items
    drugs: Items
    condition_rates: Floats
    procedure_rates: Floats
    drug_rates: Floats
    treatment_rates: Floats
    exclusions: tuple[tuple[int, int], ...]


COURSE_NUMBERS = (
    "share",
    "female",
    "returns",
    "recurs",
    "early",
    "interval_days",
    "stay_days",
    "surgery",
    "critical",
    "death",
    "elective",
    "incidental",
    "progress",
)


@cache
def load_knowledge() -> Knowledge:
    """Read the four JSON files of this package.

    >>> knowledge = load_knowledge()
    >>> "heart failure" in knowledge.syndromes.names, "hypertension" in knowledge.conditions.names
    (True, True)
    """
    conditions_table = _read("conditions.json")
    sources = _read("syndromes.json")
    conditions = _items(conditions_table, "codes", weight_at=2)
    procedures = _items(_read("procedures.json"), "codes", weight_at=1)
    drugs = _items(_read("drugs.json"), "choices", weight_at=1)
    syndromes, traits = sources["syndromes"], sources["traits"]
    bundles = {name: sources["bundles"][name] for name in BUNDLES}
    return Knowledge(
        syndromes=_syndromes(syndromes, conditions),
        traits=_traits(traits),
        conditions=conditions,
        procedures=procedures,
        drugs=drugs,
        condition_rates=_source_rates("conditions", syndromes, traits, bundles, conditions),
        procedure_rates=_source_rates("procedures", syndromes, traits, bundles, procedures),
        drug_rates=_source_rates("drugs", syndromes, traits, bundles, drugs),
        treatment_rates=np.vstack([_rates(entry.get("treated_by", {}), drugs) for entry in conditions_table.values()]),
        exclusions=tuple(
            (conditions.index_of(name), conditions.index_of(other))
            for name, entry in conditions_table.items()
            for other in entry.get("excluded_by", [])
        ),
    )


def _read(file_name: str) -> dict[str, dict[str, Any]]:
    text = resources.files(__package__).joinpath(file_name).read_text(encoding="utf-8")
    content: dict[str, dict[str, Any]] = json.loads(text)
    return content


def _items(table: Mapping[str, Mapping[str, Any]], texts_key: str, *, weight_at: int) -> Items:
    """Turn a table of items into arrays; each text row holds its weight at position ``weight_at``."""
    rows = [entry[texts_key] for entry in table.values()]
    cumulative = np.ones((len(rows), max(len(row) for row in rows)))
    for item, row in enumerate(rows):
        weights = np.array([text[weight_at] for text in row], dtype=float)
        cumulative[item, : len(row)] = np.cumsum(weights) / weights.sum()
        cumulative[item, len(row) - 1 :] = 1.0
    return Items(
        names=tuple(table),
        persists=_column(table, "persists"),
        severity=_column(table, "severity"),
        sex=np.array([SEX_CODES[entry.get("sex", "")] for entry in table.values()]),
        staged=np.array([bool(entry.get("staged", False)) for entry in table.values()]),
        first_text=np.concatenate([[0], np.cumsum([len(row) for row in rows])]),
        cumulative=cumulative,
        texts=tuple(
            tuple(str(part) for position, part in enumerate(text) if position != weight_at)
            for row in rows
            for text in row
        ),
    )


def _syndromes(table: Mapping[str, Mapping[str, Any]], conditions: Items) -> Syndromes:
    names = tuple(table)
    numbers = {number: _column(table, number) for number in COURSE_NUMBERS}
    numbers["age_mean"] = np.array([entry["age"][0] for entry in table.values()], dtype=float)
    numbers["age_spread"] = np.array([entry["age"][1] for entry in table.values()], dtype=float)
    companions = np.zeros((len(names), len(names)))
    principal = np.zeros((len(names), len(conditions.names)))
    for row, entry in enumerate(table.values()):
        for other, weight in entry["companions"].items():
            companions[row, names.index(other)] = weight
        for condition, weight in entry["principal"].items():
            principal[row, conditions.index_of(condition)] = weight
    return Syndromes(names=names, numbers=numbers, companions=companions, principal=principal)


def _traits(table: Mapping[str, Mapping[str, Any]]) -> Traits:
    share = _column(table, "share_at_65")
    return Traits(
        names=tuple(table),
        log_odds_at_65=np.log(share / (1 - share)),
        per_decade=_column(table, "log_odds_per_decade"),
        male=_column(table, "log_odds_male"),
        severity=_column(table, "log_odds_severity"),
        sex=np.array([SEX_CODES[entry.get("sex", "")] for entry in table.values()]),
    )


def _source_rates(
    kind: str,
    syndromes: Mapping[str, Mapping[str, Any]],
    traits: Mapping[str, Mapping[str, Any]],
    bundles: Mapping[str, Mapping[str, Any]],
    items: Items,
) -> Floats:
    reasons = np.vstack([_rates(entry.get(kind, {}), items) for entry in syndromes.values()])
    lasting = np.where(items.persists >= 0.5, CHRONIC_IN_BACKGROUND, ACUTE_IN_BACKGROUND)
    others: Sequence[Floats] = [
        _rates(entry.get(kind, {}), items) for group in (traits, bundles) for entry in group.values()
    ]
    return np.vstack([reasons, reasons * lasting, *others])


def _rates(probabilities: Mapping[str, float], items: Items) -> Floats:
    row = np.zeros(len(items.names))
    for name, probability in probabilities.items():
        row[items.index_of(name)] = -np.log1p(-min(probability, MOST_CERTAIN))
    return row


def _column(table: Mapping[str, Mapping[str, Any]], key: str) -> Floats:
    return np.array([entry[key] for entry in table.values()], dtype=float)
