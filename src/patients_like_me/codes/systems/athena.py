"""Codes that a reader reached through the relationships of the OHDSI vocabularies (Athena), as ways of their own.

``atc_of_rxnorm``    ATC classes above an RxNorm drug (CONCEPT_ANCESTOR), several in a cell, way ``rxnorm_ancestor``;
``icd10_of_snomed``  the ICD-10 code that maps to a SNOMED concept (CONCEPT_RELATIONSHIP), way ``snomed``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from patients_like_me.codes.atc import all_atc3_codes, atc3_names
from patients_like_me.codes.ccs import ccs_names, icd_to_ccs
from patients_like_me.codes.coverage import UNMAPPED
from patients_like_me.codes.registry import CodeSystem, Kind, answered

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore


def classes_above(kind: Kind, codes: pl.Series, store: CodeStore) -> pl.DataFrame:
    """Keep the ATC-3 classes of a cell such as ``C03C,C09A``."""
    del kind, store
    known = pl.element().is_in(list(all_atc3_codes()))
    cut = pl.col("cell").str.to_uppercase().str.split(",").list.eval(pl.element().str.strip_chars().str.slice(0, 4))
    frame = pl.DataFrame({"cell": codes}, schema={"cell": pl.String}).select(
        cut.list.eval(pl.element().filter(known)).list.unique().alias("classes")
    )
    way = pl.when(pl.col("classes").list.len() > 0).then(pl.lit("rxnorm_ancestor"))
    return answered(frame, pl.col("classes"), way)


def through_icd10(kind: Kind, codes: pl.Series, store: CodeStore) -> pl.DataFrame:
    """Map the ICD-10 codes that stand for SNOMED concepts."""
    mapped = icd_to_ccs(10, kind, codes, store)
    way = pl.when(pl.col("way") == UNMAPPED).then(pl.col("way")).otherwise(pl.lit("snomed"))
    return mapped.with_columns(way.alias("way"))


CODE_SYSTEM = (
    CodeSystem(
        name="atc_of_rxnorm",
        titles={"medication": "RxNorm"},
        mapper=classes_above,
        target="ATC-3",
        names=atc3_names,
    ),
    CodeSystem(
        name="icd10_of_snomed",
        titles={"diagnosis": "SNOMED", "procedure": "SNOMED"},
        mapper=through_icd10,
        target="CCS",
        names=ccs_names,
    ),
)
