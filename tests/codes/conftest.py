"""Fixtures of the code tables' tests: a store of its own for every test, and a small RxNorm release.

The release is written by hand in NLM's column order; numbers and codes follow RxNorm where it has them.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from patients_like_me.codes.store import CodeStore

# (rxcui, source, type, code, name, suppress)
CONCEPTS = [
    ("161", "RXNORM", "IN", "161", "acetaminophen", "N"),
    ("161", "ATC", "IN", "N02BE01", "paracetamol", "N"),
    ("161", "ATC", "PT", "N02B", "OTHER ANALGESICS AND ANTIPYRETICS", "N"),
    ("7804", "RXNORM", "IN", "7804", "oxycodone", "N"),
    ("7804", "ATC", "IN", "N02AA05", "oxycodone", "N"),
    ("82063", "RXNORM", "PIN", "82063", "oxycodone hydrochloride", "N"),
    ("3264", "RXNORM", "IN", "3264", "dexamethasone", "N"),
    ("3264", "ATC", "IN", "H02AB02", "dexamethasone", "N"),
    ("3264", "ATC", "IN", "S01BA01", "dexamethasone", "N"),
    ("3264", "ATC", "IN", "A01AC02", "dexamethasone", "O"),
    ("6918", "RXNORM", "IN", "6918", "metoprolol", "N"),
    ("6918", "ATC", "IN", "C07AB02", "metoprolol", "N"),
    ("10180", "RXNORM", "IN", "10180", "sulfamethoxazole", "N"),
    ("10180", "ATC", "IN", "J01EC01", "sulfamethoxazole", "N"),
    ("10829", "RXNORM", "IN", "10829", "trimethoprim", "N"),
    ("10829", "ATC", "IN", "J01EA01", "trimethoprim", "N"),
    ("10831", "RXNORM", "MIN", "10831", "sulfamethoxazole / trimethoprim", "N"),
    ("10831", "ATC", "IN", "J01EE01", "sulfamethoxazole and trimethoprim", "N"),
    ("9999", "RXNORM", "IN", "9999", "unclassified agent", "N"),
    ("1049621", "RXNORM", "SCD", "1049621", "oxycodone hydrochloride 5 MG Oral Tablet", "N"),
    (
        "1049640",
        "RXNORM",
        "SBD",
        "1049640",
        "acetaminophen 325 MG / oxycodone hydrochloride 5 MG Oral Tablet [Percocet]",
        "N",
    ),
    (
        "1049633",
        "RXNORM",
        "SCD",
        "1049633",
        "acetaminophen 325 MG / oxycodone hydrochloride 5 MG Oral Tablet",
        "N",
    ),
    ("42844", "RXNORM", "BN", "42844", "Percocet", "N"),
    (
        "866427",
        "RXNORM",
        "SCD",
        "866427",
        "24 HR metoprolol succinate 50 MG Extended Release Oral Tablet",
        "O",
    ),
    ("198335", "RXNORM", "SCD", "198335", "sulfamethoxazole 800 MG / trimethoprim 160 MG Oral Tablet", "N"),
    ("48937", "RXNORM", "SCD", "48937", "dexamethasone phosphate 4 MG/ML Injectable Solution", "N"),
    (
        "777",
        "RXNORM",
        "GPCK",
        "777",
        "{7 (dexamethasone 1.5 MG Oral Tablet) / 5 (acetaminophen 325 MG Oral Tablet)} Pack",
        "N",
    ),
    ("315266", "RXNORM", "SCDC", "315266", "acetaminophen 325 MG", "N"),
    ("1049620", "RXNORM", "SCDC", "1049620", "oxycodone hydrochloride 5 MG", "N"),
    ("888", "RXNORM", "SCD", "888", "unclassified agent 1 MG Oral Tablet", "N"),
]
# (from, relation, to), read as a sentence
RELATIONS = [
    ("1049621", "consists_of", "1049620"),
    ("1049620", "has_ingredient", "7804"),
    ("1049620", "has_precise_ingredient", "82063"),
    ("82063", "form_of", "7804"),
    ("1049640", "tradename_of", "1049633"),
    ("1049640", "has_ingredient", "42844"),
    ("42844", "tradename_of", "161"),
    ("42844", "tradename_of", "3264"),
    ("1049633", "consists_of", "315266"),
    ("1049633", "consists_of", "1049620"),
    ("315266", "has_ingredient", "161"),
    ("198335", "has_ingredients", "10831"),
    ("10831", "has_part", "10180"),
    ("10831", "has_part", "10829"),
    ("777", "contains", "48937"),
    ("777", "contains", "1049633"),
    ("48937", "has_ingredient", "3264"),
    ("161", "ingredient_of", "315266"),
]
# (rxcui, source, ndc)
NDCS = [
    ("1049621", "RXNORM", "00406055201"),
    ("1049640", "RXNORM", "63481062370"),
    ("866427", "RXNORM", "00186109005"),
    ("198335", "RXNORM", "00093008901"),
    ("48937", "RXNORM", "63323-165-01"),
    ("777", "RXNORM", "00054817425"),
    ("888", "RXNORM", "11111222233"),
    ("161", "VANDF", "000000000161"),
]


def _write_release(folder: Path, *, relations: bool = True, atc: bool = True, ndcs: bool = True) -> Path:
    """Write the release's files into ``folder/rrf`` and return ``folder``."""
    rrf = folder / "rrf"
    rrf.mkdir(parents=True)
    conso = [
        f"{rxcui}|ENG||||||1||||{source}|{kind}|{code}|{name}||{suppress}|4096|"
        for rxcui, source, kind, code, name, suppress in CONCEPTS
        if atc or source != "ATC"
    ]
    sat = [f"{rxcui}||||AUI||ATUI||NDC|{source}|{ndc}|N|4096|" for rxcui, source, ndc in NDCS if ndcs]
    sat.append("161||||AUI||ATUI||RXN_AVAILABLE_STRENGTH|RXNORM|325 MG|N|4096|")
    rel = [f"{to}||CUI|RO|{start}||CUI|{name}|1||RXNORM||||N|4096|" for start, name, to in RELATIONS]
    (rrf / "RXNCONSO.RRF").write_text("\n".join(conso) + "\n", encoding="utf-8")
    (rrf / "RXNSAT.RRF").write_text("\n".join(sat) + "\n", encoding="utf-8")
    if relations:
        (rrf / "RXNREL.RRF").write_text("\n".join(rel) + "\n", encoding="utf-8")
    return folder


def _zip_release(folder: Path, archive: Path) -> Path:
    """Pack a written release as NLM does, with a smaller ``prescribe`` copy that must not be taken."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("prescribe/rrf/RXNCONSO.RRF", "1|ENG||||||1||||RXNORM|IN|1|other||N||\n")
        packed.writestr("prescribe/rrf/RXNSAT.RRF", "1||||AUI||ATUI||NDC|RXNORM|99999999999|N||\n")
        for file in sorted((folder / "rrf").iterdir()):
            packed.write(file, f"rrf/{file.name}")
        packed.writestr("readme.txt", "RxNorm")
    return archive


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CodeStore:
    """Return an empty store, which is also the default one of this test."""
    folder = tmp_path / "installed codes"
    monkeypatch.setenv("PLM_CODES", str(folder))
    return CodeStore(folder)


@pytest.fixture
def write_release() -> Callable[..., Path]:
    """Return the function that writes the small release into a folder."""
    return _write_release


@pytest.fixture
def zip_release() -> Callable[[Path, Path], Path]:
    """Return the function that packs a written release."""
    return _zip_release
