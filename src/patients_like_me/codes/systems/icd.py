"""ICD-9 and ICD-10, to CCS categories: ``icd9``, ``icd10``, and ``icd`` for diagnoses of both in one column.

The version of such a diagnosis is told by its form, and a cell may hold several codes, such as ``038.9, A41.9``:
sources that moved from ICD-9-CM to ICD-10-CM often list both codes of one diagnosis side by side. A code of digits is
ICD-9, as is ``E`` with three digits before the dot; other letters are ICD-10. A ``V`` with two digits and at most two
more after the dot is ICD-9: the ICD-10 codes that begin with ``V`` (transport accidents) are longer and rare. The
cell's categories are those of all its codes.

``icd_undotted`` is for sources that may leave out the dot, where ``E878`` is ICD-9 E878 or ICD-10 E87.8: an ``E``
or ``V`` code is then ICD-9 only if the table of ICD-9 knows it and that of ICD-10 does not.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from patients_like_me.codes.ccs import ccs_kind, ccs_names, icd_to_ccs, load_ccs_map
from patients_like_me.codes.registry import CodeSystem, Kind, answered

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore

_ICD9_FORM = r"^(\d|E\d{3}(\.|$)|V\d\d(\.\d{1,2})?$)"
_E_OR_V = r"^(E\d{3,4}|V\d{2,4})$"


def mixed_icd_to_ccs(kind: Kind, codes: pl.Series, store: CodeStore, *, dotted: bool = True) -> pl.DataFrame:
    """Map every code of a cell by the version that its form tells."""
    cells = pl.DataFrame({"cell": codes}, schema={"cell": pl.String}).with_row_index("row")
    single = cells.select("row", pl.col("cell").str.to_uppercase().str.split(",").alias("code")).explode("code")
    single = single.with_columns(pl.col("code").str.strip_chars()).filter(pl.col("code") != "")
    is_icd9 = pl.col("code").str.contains(_ICD9_FORM)
    if not dotted:
        is_icd9 = pl.when(pl.col("code").str.contains(_E_OR_V)).then(_only_icd9(kind, store)).otherwise(is_icd9)
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


def _only_icd9(kind: Kind, store: CodeStore) -> pl.Expr:
    icd9, icd10 = (load_ccs_map(ccs_kind(kind), store, [version])["icd_code"].implode() for version in (9, 10))
    return pl.col("code").is_in(icd9) & ~pl.col("code").is_in(icd10)


CODE_SYSTEM = (
    CodeSystem(
        name="icd9",
        titles={"diagnosis": "ICD-9-CM", "procedure": "ICD-9 procedures"},
        mapper=partial(icd_to_ccs, 9),
        target="CCS",
        names=ccs_names,
    ),
    CodeSystem(
        name="icd10",
        titles={"diagnosis": "ICD-10-CM", "procedure": "ICD-10-PCS"},
        mapper=partial(icd_to_ccs, 10),
        target="CCS",
        names=ccs_names,
        default_for=("diagnosis", "procedure"),
    ),
    *(
        CodeSystem(
            name=name,
            titles={"diagnosis": "ICD-9 or ICD-10 by form"},
            mapper=partial(mixed_icd_to_ccs, dotted=dotted),
            target="CCS",
            names=ccs_names,
        )
        for name, dotted in (("icd", True), ("icd_undotted", False))
    ),
)
