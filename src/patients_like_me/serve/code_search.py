"""Finding a code by what a person types: its name, a synonym, an ICD code or a drug's name.

Everything is on this machine: the names of the run's vocabulary, the names and synonyms of the packaged code systems,
and the maps from ICD codes and drug names. What a search returns is a code of the vocabulary, which what-if takes, and
an entry that a newcomer's record takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import polars as pl

from patients_like_me.codes.coverage import UNMAPPED
from patients_like_me.codes.registry import Kind, find_code_system
from patients_like_me.codes.store import CodeStore
from patients_like_me.plain_text import printable

#: Words a clinician types, and words of the names of CCS categories that mean it. Written by us; names always work.
SYNONYMS: Final[Mapping[str, str]] = {
    "afib": "cardiac dysrhythmias",
    "atrial fibrillation": "cardiac dysrhythmias",
    "arrhythmia": "cardiac dysrhythmias",
    "aki": "acute and unspecified renal failure",
    "acute kidney injury": "acute and unspecified renal failure",
    "renal failure": "renal failure",
    "ckd": "chronic kidney disease",
    "cad": "coronary atherosclerosis",
    "coronary heart disease": "coronary atherosclerosis",
    "chf": "congestive heart failure",
    "heart failure": "congestive heart failure",
    "copd": "chronic obstructive pulmonary disease",
    "diabetes": "diabetes mellitus",
    "dvt": "phlebitis; thrombophlebitis",
    "heart attack": "acute myocardial infarction",
    "high blood pressure": "hypertension",
    "htn": "hypertension",
    "hyperlipidemia": "disorders of lipid metabolism",
    "cholesterol": "disorders of lipid metabolism",
    "mi": "acute myocardial infarction",
    "pe": "pulmonary heart disease",
    "pulmonary embolism": "pulmonary heart disease",
    "sepsis": "septicemia",
    "stroke": "acute cerebrovascular disease",
    "tia": "transient cerebral ischemia",
    "uti": "urinary tract infections",
    "alcohol": "alcohol-related disorders",
    "drinking": "alcohol-related disorders",
    "kidney failure": "renal failure",
    "blood clot": "phlebitis; thrombophlebitis",
    "cancer": "cancer",
    "lung cancer": "cancer of bronchus; lung",
    "anemia": "anemia",
    "anaemia": "anemia",
    "dementia": "delirium, dementia",
    "depression": "mood disorders",
    "water tablet": "diuretics",
    "blood thinner": "antithrombotic",
    "statin": "lipid modifying agents",
    "painkiller": "analgesics",
}
_SYSTEM_OF: Final[Mapping[Kind, tuple[str, ...]]] = {
    "diagnosis": ("icd10", "icd9"),
    "procedure": ("icd10", "icd9"),
    "medication": ("name", "atc", "ndc", "rxnorm"),
}
_KEPT: Final[Mapping[Kind, str]] = {"diagnosis": "ccs", "procedure": "ccs", "medication": "atc"}
_WORD: Final = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True)
class FoundCode:
    """A code that was found. ``known`` tells whether a training patient had it."""

    kind: Kind
    code: str
    name: str
    given: str
    matched: str
    known: bool
    entry: str


class CodeSearch:
    """The codes of a run, ready to be searched."""

    def __init__(self, vocabulary: pl.DataFrame, store: CodeStore | None = None) -> None:
        self.vocabulary = vocabulary
        self.store = store or CodeStore.default()

    @cached_property
    def names(self) -> dict[Kind, dict[str, str]]:
        """Every code with its name: those of the run, then those of the packaged systems that it does not have."""
        found: dict[Kind, dict[str, str]] = {kind: dict(self._of_run(kind)) for kind in _KEPT}
        for kind, system in _KEPT.items():
            names = find_code_system(kind, system).names
            if names is not None and self._uses(kind, system):
                for code, name in names(kind).select("code", "name").iter_rows():
                    found[kind].setdefault(code, name)
        return found

    @cached_property
    def known(self) -> dict[Kind, frozenset[str]]:
        """The codes that training patients had."""
        return {kind: frozenset(code for code, _ in self._of_run(kind)) for kind in _KEPT}

    def _of_run(self, kind: Kind) -> Iterable[tuple[str, str]]:
        return self.vocabulary.filter(pl.col("kind") == kind).select("code", "name").iter_rows()

    def _uses(self, kind: Kind, system: str) -> bool:
        """Tell whether the run's codes of a kind are those of a packaged system; a hospital may have its own."""
        names = find_code_system(kind, system).names
        own = [code for code, _ in self._of_run(kind)]
        if names is None or not own:
            return True
        packaged = set(names(kind)["code"].to_list())
        return sum(code in packaged for code in own) > len(own) / 2

    def search(self, query: str, kind: Kind, limit: int = 20) -> list[FoundCode]:
        """Return the codes that a query means, the best match first."""
        typed = printable(query).strip()
        if not typed:
            return []
        words = _WORD.findall(typed.lower())
        ranked: dict[str, tuple[tuple[int, int, str], FoundCode]] = {}

        def offer(code: str, given: str, matched: str, rank: int, entry: str | None = None) -> None:
            name = self.names[kind].get(code)
            if name is None:
                return
            known = code in self.known[kind]
            found = FoundCode(
                kind, code, printable(name), given, printable(matched), known, entry or self._entry(kind, code)
            )
            key = (rank, 0 if known else 1, name.lower())
            if code not in ranked or key < ranked[code][0]:
                ranked[code] = (key, found)

        for code, name in self.names[kind].items():
            if code.lower() == typed.lower():
                offer(code, code, code, 0)
            elif words and all(word in name.lower() for word in words):
                starts = name.lower().startswith(words[0])
                offer(code, code, name, 2 if starts else 3)
        for code, system in self._mapped(typed, kind):
            offer(code, typed, f"{typed} ({system})", 1, f"{system}:{typed}")
        for synonym, meaning in SYNONYMS.items():
            if len(typed) > 1 and (synonym == typed.lower() or (len(typed) > 2 and synonym.startswith(typed.lower()))):
                for code, name in self.names[kind].items():
                    if meaning in name.lower():
                        offer(code, code, synonym, 1 if synonym == typed.lower() else 4)
        return [found for _, found in sorted(ranked.values(), key=lambda item: item[0])[:limit]]

    def _mapped(self, typed: str, kind: Kind) -> list[tuple[str, str]]:
        """Return the codes that a code or a drug's name becomes, with the system that knows it."""
        found: list[tuple[str, str]] = []
        for system in _SYSTEM_OF[kind]:
            if kind != "medication" and not any(sign.isdigit() for sign in typed):
                continue
            mapped = find_code_system(kind, system).mapper(kind, pl.Series("code", [typed]), self.store)
            if mapped["way"][0] != UNMAPPED and mapped["codes"][0] is not None:
                found += [(code, system) for code in mapped["codes"][0].to_list()]
            if found:
                break
        return found

    def _entry(self, kind: Kind, code: str) -> str:
        system = _KEPT[kind] if self._uses_packaged[kind] else "own"
        return f"{system}:{code}"

    @cached_property
    def _uses_packaged(self) -> dict[Kind, bool]:
        return {kind: self._uses(kind, system) for kind, system in _KEPT.items()}
