"""Read an NLM RxNorm release: NDCs (RXNSAT.RRF), ATC codes (RXNCONSO.RRF), the way between (RXNREL.RRF).

An NDC belongs to a product (``oxycodone hydrochloride 5 MG Oral Tablet``), an ATC code to an ingredient
(``oxycodone``), so a product's codes are those of its ingredients. Two ways lead there, in this order:

1. relations, where RXNREL.RRF is there too (as in every release of NLM): product to component to
   ingredient, brand to generic, pack to contents. Products whose combination of ingredients has ATC codes
   of its own take those; otherwise a product takes the codes of all its ingredients;
2. names, for what is left: the ingredient names in the product's own name, looked up among the
names of
   everything that has an ATC code.

An ingredient with several uses has several ATC codes (dexamethasone: tablets, eye drops, creams), and a
product takes them all: RxNorm does not say which of them a product belongs to. The full monthly release
holds ATC; the *Current Prescribable Content*, which needs no licence, holds the NDCs but no ATC codes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TypeVar

import polars as pl
from polars.exceptions import PolarsError

from patients_like_me.codes.drug_tables import ParsedTable, normalised_atc3, normalised_ndc, normalised_rxcui
from patients_like_me.errors import PlmError

RELEASE_FILES = ("RXNCONSO.RRF", "RXNSAT.RRF", "RXNREL.RRF")

_PathType = TypeVar("_PathType", bound=PurePath)
_COLUMNS = {
    "RXNCONSO.RRF": {"rxcui": 1, "source": 12, "type": 13, "code": 14, "name": 15, "suppress": 17},
    "RXNSAT.RRF": {"rxcui": 1, "attribute": 9, "source": 10, "value": 11},
    "RXNREL.RRF": {"to": 1, "from": 5, "relation": 8, "source": 11},
}
_INGREDIENTS = ("IN", "PIN", "MIN")
_PRODUCTS = ("SCD", "SBD", "SCDF", "SBDF", "SCDC", "SBDC", "BN")
_PACKS = ("GPCK", "BPCK")
_RELATIONS_TO_INGREDIENT = (
    "consists_of",
    "has_ingredient",
    "has_ingredients",
    "has_precise_ingredient",
    "tradename_of",
    "form_of",
    "has_part",
)
_LONGEST_WAY = 5
_LEADING_QUANTITY = re.compile(r"^(?:[\d.,]+\s*(?:hr|ml|mg|actuat|unt|day)\s+)+")
_CONTENT_OF_PACK = re.compile(r"\d+\s*\(([^()]*)\)")


@dataclass(frozen=True)
class Release:
    """What a release gave: the two tables (where it has them) and sentences on what it lacks."""

    tables: list[ParsedTable]
    notes: list[str] = field(default_factory=list)


def choose_release_files(paths: Iterable[_PathType]) -> dict[str, _PathType]:
    """Pick the three files of one release among paths, case aside; empty where there is none.

    NLM's full release also carries the smaller ``prescribe`` folder with files of the same names: the full
    one wins.

    >>> from pathlib import PurePosixPath
    >>> names = ["prescribe/rrf/RXNSAT.RRF", "rrf/RXNSAT.RRF", "rrf/RXNCONSO.RRF", "readme.txt"]
    >>> sorted(map(str, choose_release_files(map(PurePosixPath, names)).values()))
    ['rrf/RXNCONSO.RRF', 'rrf/RXNSAT.RRF']
    """
    folders: dict[PurePath, dict[str, _PathType]] = {}
    for path in paths:
        if path.name.upper() in RELEASE_FILES:
            folders.setdefault(path.parent, {})[path.name.upper()] = path
    usable = {folder: files for folder, files in folders.items() if files.keys() & set(RELEASE_FILES[:2])}
    if not usable:
        return {}
    best = min(
        usable,
        key=lambda folder: (
            "prescribe" in map(str.lower, folder.parts),
            -len(usable[folder]),
            len(folder.parts),
        ),
    )
    return usable[best]


def find_release(folder: Path) -> dict[str, Path]:
    """Find the files of a release in a folder or in the two levels below it."""
    return choose_release_files(path for pattern in ("*", "*/*", "*/*/*") for path in folder.glob(pattern))


def read_release(files: dict[str, Path]) -> Release:
    """Read the tables ``ndc_rxcui`` and ``rxcui_atc3`` from the files of one release."""
    tables, notes = [], []
    if "RXNSAT.RRF" in files:
        ndcs = _read_ndcs(files["RXNSAT.RRF"])
        if ndcs.is_empty():
            notes.append("RXNSAT.RRF holds no NDC of the source RXNORM: no NDC was installed")
        else:
            tables.append(ParsedTable("ndc_rxcui", ndcs))
    else:
        notes.append("there is no RXNSAT.RRF: no NDC was installed")
    if "RXNCONSO.RRF" in files:
        codes, found = _read_atc(files["RXNCONSO.RRF"], files.get("RXNREL.RRF"))
        notes += found
        if not codes.is_empty():
            tables.append(ParsedTable("rxcui_atc3", codes))
    else:
        notes.append("there is no RXNCONSO.RRF: no ATC code was installed")
    if not tables:
        raise PlmError(
            f"the RxNorm files in '{next(iter(files.values())).parent}' hold neither NDCs nor ATC codes",
            remedy="give the full monthly release",
        )
    return Release(tables, notes)


def atc3_by_name(product: str, names: dict[str, frozenset[str]]) -> frozenset[str]:
    """Return the ATC-3 codes of the ingredients that a product's RxNorm name starts its parts with.

    >>> names = {"acetaminophen": frozenset({"N02B"}), "oxycodone": frozenset({"N02A"})}
    >>> product = "acetaminophen 325 MG / oxycodone hydrochloride 5 MG Oral Tablet [Percocet]"
    >>> sorted(atc3_by_name(product, names))
    ['N02A', 'N02B']
    """
    text = re.sub(r"\[[^\]]*\]", "", product.lower()).strip()
    contents = _CONTENT_OF_PACK.findall(text) if text.startswith("{") else [text]
    found: set[str] = set()
    for content in contents:
        known = [name for part in content.split(" / ") if (name := _longest_known_name(part, names))]
        combined = names.get(" / ".join(sorted(known)))
        found.update(combined if combined is not None else frozenset().union(*(names[name] for name in known)))
    return frozenset(found)


def _longest_known_name(part: str, names: dict[str, frozenset[str]]) -> str | None:
    """Return the longest beginning of ``part``, in whole words before its strength, that is a known name."""
    words = _LEADING_QUANTITY.sub("", part.strip()).split()
    before_strength = next((at for at, word in enumerate(words) if word[0].isdigit()), len(words))
    beginnings = (" ".join(words[:length]).rstrip(",") for length in range(before_strength, 0, -1))
    return next((name for name in beginnings if name in names), None)


def _read_ndcs(path: Path) -> pl.DataFrame:
    rows = _scan(path).filter((pl.col("attribute") == "NDC") & (pl.col("source") == "RXNORM"))
    pairs = rows.select(ndc=normalised_ndc(pl.col("value")), rxcui=normalised_rxcui(pl.col("rxcui")))
    return _collect(pairs.drop_nulls().unique(), path).sort("ndc", "rxcui")


def _read_atc(conso: Path, rel: Path | None) -> tuple[pl.DataFrame, list[str]]:
    """Return ``rxcui, atc3`` of ingredients, products and packs, and sentences on how they were found."""
    is_atc = (pl.col("source") == "ATC") & pl.col("code").str.contains(r"^[A-Z]\d\d[A-Z]{2}\d\d$")
    is_concept = (pl.col("source") == "RXNORM") & pl.col("type").is_in([*_INGREDIENTS, *_PRODUCTS, *_PACKS])
    # Obsolete products stay: old records carry their NDCs. Obsolete ATC codes go.
    kept = (is_atc & (pl.col("suppress").fill_null("N") != "O")) | is_concept
    rows = _collect(_scan(conso).filter(kept), conso)
    atc = rows.filter(pl.col("source") == "ATC").select("rxcui", atc3=normalised_atc3(pl.col("code"))).unique()
    if atc.is_empty():
        note = (
            "RXNCONSO.RRF holds no ATC codes (the Current Prescribable Content leaves them out): "
            "add the full release, or a table with the columns rxcui and atc3"
        )
        return atc, [note]
    concepts = rows.filter(pl.col("source") == "RXNORM").select("rxcui", "type", "name").unique("rxcui")
    products = concepts.filter(pl.col("type").is_in([*_PRODUCTS, *_PACKS]))
    related = _atc_by_relation(_read_relations(rel), concepts, atc) if rel is not None else atc.clear()
    left = products.join(pl.concat([atc, related]), on="rxcui", how="anti")
    named = _atc_by_name(left, rows, atc)
    found = pl.concat([atc, related, named]).unique().sort("rxcui", "atc3")
    counts = [part.join(products, on="rxcui", how="semi")["rxcui"].n_unique() for part in (related, named, found)]
    note = (
        f"of {products.height:,} products and packs {counts[0]:,} have ATC codes through RXNREL.RRF, "
        f"{counts[1]:,} through the ingredients in their names, {products.height - counts[2]:,} have none"
    )
    return found, [note] if rel is not None else [
        note,
        "there is no RXNREL.RRF: only names led to ingredients",
    ]


def _read_relations(path: Path) -> pl.DataFrame:
    wanted = pl.col("relation").is_in([*_RELATIONS_TO_INGREDIENT, "contains"]) & (pl.col("source") == "RXNORM")
    # A row reads from right to left: concept 2 (here "from") has the relation to concept 1 (here "to").
    return _collect(_scan(path).filter(wanted).select("from", "to", "relation").drop_nulls().unique(), path)


def _atc_by_relation(relations: pl.DataFrame, concepts: pl.DataFrame, atc: pl.DataFrame) -> pl.DataFrame:
    """Follow the relations of every product to its ingredients, then of every pack to its products."""
    is_pack_relation = pl.col("relation") == "contains"
    # A brand name covers different products over time: no way leads through it, only away from it.
    brands = concepts.filter(pl.col("type") == "BN").select(to="rxcui")
    edges = relations.filter(~is_pack_relation).select("from", "to").unique().join(brands, on="to", how="anti")
    frontier = concepts.filter(pl.col("type").is_in(_PRODUCTS)).select("rxcui", concept="rxcui")
    reached = frontier
    for _ in range(_LONGEST_WAY):
        frontier = (
            frontier.join(edges, left_on="concept", right_on="from")
            .select("rxcui", concept="to")
            .unique()
            .join(reached, on=["rxcui", "concept"], how="anti")
        )
        if frontier.is_empty():
            break
        reached = pl.concat([reached, frontier])
    combinations = concepts.filter(pl.col("type") == "MIN").select(concept="rxcui", is_combination=pl.lit(value=True))
    codes = (
        reached.join(atc.rename({"rxcui": "concept"}), on="concept")
        .join(combinations, on="concept", how="left")
        .with_columns(pl.col("is_combination").fill_null(value=False))
        .filter(pl.col("is_combination") == pl.col("is_combination").any().over("rxcui"))
        .select("rxcui", "atc3")
        .unique()
    )
    packs = (
        relations.filter(is_pack_relation)
        .join(codes, left_on="to", right_on="rxcui")
        .select(pl.col("from").alias("rxcui"), "atc3")
    )
    return pl.concat([codes, packs]).unique()


def _atc_by_name(left: pl.DataFrame, rows: pl.DataFrame, atc: pl.DataFrame) -> pl.DataFrame:
    is_ingredient_row = (pl.col("source") == "ATC") | pl.col("type").is_in(_INGREDIENTS)
    named = (
        rows.filter(is_ingredient_row)
        .select("rxcui", name=pl.col("name").str.to_lowercase())
        .join(atc, on="rxcui")
        .group_by("name")
        .agg("atc3")
    )
    names = {name: frozenset(codes) for name, codes in named.iter_rows() if name}
    pairs = [
        (rxcui, code)
        for rxcui, name in left.select("rxcui", "name").drop_nulls().iter_rows()
        for code in atc3_by_name(name, names)
    ]
    return pl.DataFrame(pairs, schema=atc.schema, orient="row")


def _scan(path: Path) -> pl.LazyFrame:
    columns = _COLUMNS[path.name.upper()]
    frame = pl.scan_csv(
        path, separator="|", has_header=False, quote_char=None, infer_schema=False, encoding="utf8-lossy", glob=False
    )
    return frame.select(pl.nth(at - 1).alias(name) for name, at in columns.items())


def _collect(frame: pl.LazyFrame, path: Path) -> pl.DataFrame:
    try:
        return frame.collect(engine="streaming")
    except PolarsError as error:
        reason = str(error).splitlines()[0]
        raise PlmError(
            f"'{path}' is not the table {path.name.upper()} as NLM writes it ({reason})",
            remedy="unpack the release again",
        ) from None
