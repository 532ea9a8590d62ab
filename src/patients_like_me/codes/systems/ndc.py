"""National Drug Codes, to ATC-3 through the installed tables.

Ways, in the order in which they are tried; the first that answers decides alone:

``ndc_rxnorm``  NDC to RxCUI to ATC-3, the codes of all RxCUIs together;
``ndc_table``   NDC to ATC-3 through an installed table that names the codes directly.

An NDC of ``0`` or blank means that none was recorded, so it stays unmapped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from patients_like_me.codes.atc import atc3_names
from patients_like_me.codes.drug_tables import normalised_ndc
from patients_like_me.codes.registry import CodeSystem, Kind, answered

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore


def map_ndcs(ndcs: pl.Series, store: CodeStore) -> pl.DataFrame:
    """Return ``ndc, atc3, way`` of those 11-digit NDCs that the installed tables answer."""
    wanted = pl.DataFrame({"ndc": ndcs}, schema={"ndc": pl.String})
    to_rxcui, to_atc3, direct = (store.table(name) for name in ("ndc_rxcui", "rxcui_atc3", "ndc_atc3"))
    answers = []
    if to_rxcui is not None and to_atc3 is not None:
        answers.append((wanted.join(to_rxcui, on="ndc").join(to_atc3, on="rxcui"), "ndc_rxnorm"))
    if direct is not None:
        answers.append((wanted.join(direct, on="ndc"), "ndc_table"))
    found = pl.DataFrame(schema={"ndc": pl.String(), "atc3": pl.List(pl.String()), "way": pl.String()})
    for rows, way in answers:
        codes = rows.join(found, on="ndc", how="anti").group_by("ndc").agg(pl.col("atc3").unique().sort())
        found = pl.concat([found, codes.with_columns(way=pl.lit(way))])
    return found.sort("ndc")


def ndc_to_atc3(kind: Kind, codes: pl.Series, store: CodeStore) -> pl.DataFrame:
    """Map NDCs in any usual form."""
    del kind
    given = pl.DataFrame({"ndc": codes}, schema={"ndc": pl.String}).select(normalised_ndc(pl.col("ndc")))
    by_ndc = map_ndcs(given["ndc"].drop_nulls().unique(), store)
    found = given.join(by_ndc, on="ndc", how="left", maintain_order="left")
    return answered(found, pl.col("atc3"), pl.col("way"))


CODE_SYSTEM = CodeSystem(name="ndc", titles={"medication": "NDC"}, mapper=ndc_to_atc3, target="ATC-3", names=atc3_names)
