"""RxNorm concepts (RxCUI), to ATC-3 through the installed table ``rxcui_atc3``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from patients_like_me.codes.atc import atc3_names
from patients_like_me.codes.drug_tables import normalised_rxcui
from patients_like_me.codes.registry import CodeSystem, Kind, answered

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore


def rxcui_to_atc3(kind: Kind, codes: pl.Series, store: CodeStore) -> pl.DataFrame:
    """Map RxCUIs; without the table (``plm codes add``) all stay unmapped."""
    del kind
    given = pl.DataFrame({"rxcui": codes}, schema={"rxcui": pl.String}).select(normalised_rxcui(pl.col("rxcui")))
    table = store.table("rxcui_atc3")
    if table is None:
        table = pl.DataFrame(schema={"rxcui": pl.String, "atc3": pl.String})
    by_rxcui = table.group_by("rxcui").agg(pl.col("atc3").unique().sort())
    found = given.join(by_rxcui, on="rxcui", how="left", maintain_order="left")
    return answered(found, pl.col("atc3"), pl.when(pl.col("atc3").is_not_null()).then(pl.lit("rxnorm")))


CODE_SYSTEM = CodeSystem(
    name="rxnorm", titles={"medication": "RxNorm"}, mapper=rxcui_to_atc3, target="ATC-3", names=atc3_names
)
