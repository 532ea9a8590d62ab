"""Ancestors of codes: the multi-level CCS for diagnoses and procedures, and ATC by its own prefixes.

HCUP's multi-level files (``ccs_multi_dx_2015.csv``, ``ccs_multi_pr_2014.csv``, works of the US government, supplied by
the user) have one row per ICD-9 code with the numbers and labels of its levels. A label that ends in a bracket, such as
``Tuberculosis [1.]``, is the single-level category 1; the levels above it are that category's ancestors. ICD-10 codes
map to the same categories, so the hierarchy serves them too.

Three things in the files need a rule. A label that names several categories (``[259. and 260.]``) is an ancestor of
each. Below a category there may be finer ones of HCUP's mental health file (``[6521]`` below ``[652]``): the outermost
bracket counts. The categories 2601 to 2621 divide category 260 by external cause and have its ancestors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

import polars as pl

from patients_like_me.codes.drug_tables import ParsedTable
from patients_like_me.codes.table_files import clean_column
from patients_like_me.errors import PlmError

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore

HierarchyTable = Literal["ccs_multi_dx", "ccs_multi_pr"]
HIERARCHY_TABLES: Final[tuple[HierarchyTable, ...]] = get_args(HierarchyTable)
#: One row per category and ancestor; level 1 is the nearest.
COLUMNS: Final = ("ccs", "level", "ancestor", "name")
HEADER_WORDS: Final = ("ccslvl1", "ancestor")
#: An ICD-9 procedure has four digits at most; a diagnosis five, or a letter.
_PROCEDURE = re.compile("[0-9]{2,4}")

#: A letter, two digits, a letter.
_ATC3 = re.compile("[A-Z][0-9]{2}[A-Z]")

_LEVELS = 4
_EXTERNAL_CAUSES = tuple(str(number) for number in range(2601, 2622))
# One file of 2014 has lost the closing bracket of category 147.
_BRACKET = re.compile(r"\[([\d., and]+)\]?\s*$")


@dataclass(frozen=True)
class Ancestors:
    """Ancestors of codes, nearest first and without the root, and the codes for which none is known."""

    of: Mapping[str, tuple[str, ...]]
    names: Mapping[str, str]
    without: tuple[str, ...] = ()

    @classmethod
    def installed(cls, table: HierarchyTable, store: CodeStore | None = None) -> Ancestors | None:
        """Return an installed hierarchy, None where there is none."""
        from patients_like_me.codes.store import CodeStore

        frame = (store or CodeStore.default()).table(table)
        if frame is None:
            return None
        ordered = frame.sort("ccs", pl.col("level").cast(pl.Int64))
        above = {str(code): tuple(part["ancestor"]) for (code,), part in ordered.group_by("ccs", maintain_order=True)}
        return cls(above, dict(frame.select("ancestor", "name").iter_rows()))

    def for_codes(self, codes: Iterable[str]) -> Ancestors:
        """Keep the ancestors of some codes; a code without any is listed in ``without``, never dropped silently.

        >>> known = Ancestors({"108": ("7.2", "7")}, {"7": "Diseases of the circulatory system"})
        >>> known.for_codes(["108", "150"]).without
        ('150',)
        """
        wanted = tuple(dict.fromkeys(codes))
        found = {code: self.of[code] for code in wanted if code in self.of}
        return Ancestors(found, self.names, tuple(code for code in wanted if code not in found))

    def sentence(self, kind: str) -> str:
        """Say how many codes of a kind have ancestors, and name those that have none.

        >>> Ancestors({"108": ("7.2", "7")}, {}, without=("150",)).sentence("diagnosis")
        '1 of 2 diagnosis codes have ancestors; without: 150'
        """
        counted = f"{len(self.of)} of {len(self.of) + len(self.without)} {kind} codes have ancestors"
        return counted + named_without(self.without)


def named_without(codes: Sequence[str], most: int = 12) -> str:
    """Name the codes of which something is not known, some of them where there are many.

    >>> named_without(["a", "b", "c"], most=2), named_without([])
    ('; without: a, b and 1 more', '')
    """
    more = f" and {len(codes) - most} more" if len(codes) > most else ""
    return f"; without: {', '.join(codes[:most])}{more}" if codes else ""


def parse_hierarchy(
    raw: pl.DataFrame, *, source: Path, table: HierarchyTable | None = None
) -> list[ParsedTable] | None:
    """Recognise HCUP's multi-level file, or a table of one's own with the columns ccs, level, ancestor and name.

    HCUP's two files have the same header; the codes of their first column tell procedures from diagnoses.

    >>> raw = pl.DataFrame({"ccs": ["108"], "level": ["1"], "ancestor": ["7.2"], "name": ["Heart"]})
    >>> parse_hierarchy(raw, source=Path("own.csv"), table="ccs_multi_dx")[0].frame.rows()
    [('108', '1', '7.2', 'Heart')]
    """
    names = {clean_column(name): name for name in raw.columns}
    if set(COLUMNS) <= set(names):
        if table is None:
            raise PlmError(
                f"'{source}' is a hierarchy, of diagnoses or of procedures",
                remedy=f"say which: --as {' or --as '.join(HIERARCHY_TABLES)}",
            )
        frame = raw.select(pl.col(names[column]).cast(pl.String).alias(column) for column in COLUMNS)
        if not frame["level"].str.contains(r"^\d+$").fill_null(False).all():
            raise PlmError(f"a level of '{source}' is not a number", remedy="write 1 for the nearest ancestor, then 2")
        return [ParsedTable(table, frame.drop_nulls(), frame.height - frame.drop_nulls().height)]
    if "ccslvl1" not in names:
        if table is None:
            return None
        raise PlmError(
            f"'{source}' is not a hierarchy", remedy="give HCUP's multi-level file, or " + ", ".join(COLUMNS)
        )
    found = _multi_level_ccs(raw, source)
    codes = raw[raw.columns[0]].drop_nulls().str.strip_chars().to_list()
    recognised: HierarchyTable = "ccs_multi_pr" if all(map(_PROCEDURE.fullmatch, codes)) else "ccs_multi_dx"
    rows = [
        (code, str(level), above, found.names[above])
        for code, path in found.of.items()
        for level, above in enumerate(path, start=1)
    ]
    return [
        ParsedTable(table or recognised, pl.DataFrame(rows, schema=dict.fromkeys(COLUMNS, pl.String), orient="row"))
    ]


def _multi_level_ccs(table: pl.DataFrame, path: Path) -> Ancestors:
    columns = {clean_column(name): name for name in table.columns}
    levels = [
        (columns[f"ccslvl{level}"], columns[f"ccslvl{level}label"])
        for level in range(1, _LEVELS + 1)
        if f"ccslvl{level}" in columns and f"ccslvl{level}label" in columns
    ]
    if not levels:
        raise PlmError(
            f"'{path}' has no columns 'CCS LVL 1' and 'CCS LVL 1 LABEL'",
            remedy="give HCUP's multi-level file, such as ccs_multi_dx_2015.csv",
        )
    ancestors: dict[str, tuple[str, ...]] = {}
    names: dict[str, str] = {}
    cells = [name for pair in levels for name in pair]
    for row in table.select(cells).unique(maintain_order=True).iter_rows():
        passed: list[str] = []
        for number, label in zip(row[::2], row[1::2], strict=True):
            categories = _categories_in(label)
            if len(categories) != 1 and number:
                passed.append(number)
                names[number] = _BRACKET.sub("", label).strip()
            for category in categories:
                _note(ancestors, category, tuple(reversed(passed)), path)
            if categories:
                break
    if not ancestors:
        raise PlmError(
            f"no label of '{path}' names a single-level category in brackets", remedy="give HCUP's file unchanged"
        )
    if "260" in ancestors:
        ancestors.update({category: ancestors["260"] for category in _EXTERNAL_CAUSES if category not in ancestors})
    return Ancestors(ancestors, names)


def atc_ancestors(codes: Iterable[str]) -> Ancestors:
    """Return the ancestors of ATC-3 codes: the first three characters, and the first one.

    >>> found = atc_ancestors(["A02B", "aspirin"])
    >>> found.of, found.without
    ({'A02B': ('A02', 'A')}, ('aspirin',))
    """
    return Ancestors({code: (code[:3], code[:1]) for code in codes if _ATC3.fullmatch(code)}, {}).for_codes(codes)


def _categories_in(label: str | None) -> list[str]:
    bracket = _BRACKET.search(label or "")
    return re.findall(r"\d+", bracket[1]) if bracket else []


def _note(ancestors: dict[str, tuple[str, ...]], category: str, found: tuple[str, ...], path: Path) -> None:
    if ancestors.setdefault(category, found) != found:
        first, second = " and ".join(ancestors[category]), " and ".join(found)
        raise PlmError(
            f"'{path}' puts category {category} below {first} and below {second}",
            remedy="give HCUP's file unchanged",
        )
