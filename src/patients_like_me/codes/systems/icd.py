"""ICD diagnoses whose version is told by their form; a cell may hold several codes, such as ``038.9, A41.9``.

Sources that moved from ICD-9-CM to ICD-10-CM often list both codes of one diagnosis side by side. A code of digits is
ICD-9, as is ``E`` with three digits before the dot; other letters are ICD-10. A ``V`` with two digits and at most two
more after the dot is ICD-9: the ICD-10 codes that begin with ``V`` (transport accidents) are longer and rare. Without
a dot, a longer ``E`` or ``V`` code is ICD-9 where only the table of ICD-9 knows it. The cell's categories are those of
all its codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from patients_like_me.codes.ccs import ccs_kind, ccs_names, icd_to_ccs, load_ccs_map
from patients_like_me.codes.registry import CodeSystem, Kind, answered

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore

_ICD9_FORM = r"^(\d|E\d{3}(\.|$)|V\d\d(\.\d{1,2})?$)"
_UNDOTTED_E_OR_V = r"^(E\d{4}|V\d{3,4})$"


def mixed_icd_to_ccs(kind: Kind, codes: pl.Series, store: CodeStore) -> pl.DataFrame:
    """Map every code of a cell by the version that its form tells."""
    cells = pl.DataFrame({"cell": codes}, schema={"cell": pl.String}).with_row_index("row")
    single = cells.select("row", pl.col("cell").str.to_uppercase().str.split(",").alias("code")).explode("code")
    single = single.with_columns(pl.col("code").str.strip_chars()).filter(pl.col("code") != "")
    single = single.with_columns(_is_icd9(single["code"], kind, store))
    is_icd9 = pl.col("is_icd9")
    parts = []
    for version, of_version in ((9, single.filter(is_icd9)), (10, single.filter(~is_icd9))):
        distinct = of_version["code"].unique(maintain_order=True)
        mapped = icd_to_ccs(version, kind, distinct, store).with_columns(distinct.alias("code"))
        parts.append(of_version.join(mapped, on="code"))
    found = (
        pl.concat(parts)
        .filter(pl.col("codes").list.len() > 0)
        .group_by("row")
        .agg(
            pl.col("codes").explode().unique().sort(),
            # A category from the table is worth more than one guessed from a code's beginning.
            pl.when((pl.col("way") == "table").any()).then(pl.lit("table")).otherwise(pl.lit("prefix")).alias("way"),
        )
    )
    return answered(cells.join(found, on="row", how="left", maintain_order="left"), pl.col("codes"), pl.col("way"))


def _is_icd9(codes: pl.Series, kind: Kind, store: CodeStore) -> pl.Series:
    by_form = codes.str.contains(_ICD9_FORM)
    undotted = codes.str.contains(_UNDOTTED_E_OR_V)
    if not undotted.any():
        return by_form.alias("is_icd9")
    known = {version: load_ccs_map(ccs_kind(kind), store, [version])["icd_code"] for version in (9, 10)}
    only_icd9 = codes.is_in(known[9].implode()) & ~codes.is_in(known[10].implode())
    return (by_form | (undotted & only_icd9)).alias("is_icd9")


CODE_SYSTEM = CodeSystem(
    name="icd",
    titles={"diagnosis": "ICD-9 or ICD-10 by form"},
    mapper=mixed_icd_to_ccs,
    target="CCS",
    names=ccs_names,
)
