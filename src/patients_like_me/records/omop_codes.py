"""From the code columns of an OMOP event table to codes: what the source wrote, else what the standard concept means.

An event has a source value (text), a source concept and a standard concept. Each distinct triple is looked up once:

diagnoses, procedures
    the source concept where it is ICD; else the source value where it has the form of an ICD code and the source
    concept is not one of the site's own (2,000,000,000 and above); else the standard concept, if it is ICD itself or
    SNOMED with a way to ICD-10.
medications
    the ATC classes above the standard concept; else the NDC; else a name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import polars as pl

from patients_like_me.codes.registry import CodeColumns, Kind, SystemColumn
from patients_like_me.records.omop_vocabulary import Vocabulary

#: The columns of an event that its codes depend on.
KEYS: Final = ("source_value", "source_concept", "standard_concept")
#: From here on concept numbers are a site's own.
FIRST_LOCAL_CONCEPT: Final = 2_000_000_000
#: Athena numbers the concepts of ICD-9-CM within this range, which tells the version where the vocabulary is missing.
ICD9CM_CONCEPTS: Final = (44_819_000, 44_838_999)
_ICD_VOCABULARIES: Final[dict[str, dict[str, str]]] = {
    "diagnosis": {"ICD9CM": "icd9", "ICD10CM": "icd10", "ICD10": "icd10", "ICD10GM": "icd10"},
    "procedure": {"ICD9Proc": "icd9", "ICD10PCS": "icd10"},
}
_ICD_FORM: Final = {
    "diagnosis": r"^(\d{3}(\.?\d{1,2})?|E\d{3}(\.?\d)?|[A-Z]\d[0-9A-Z](\.?[0-9A-Z]{1,4})?)$",
    # Three or four digits are ICD-9; ICD-10-PCS has seven signs and neither I nor O; CPT has five digits.
    "procedure": r"^(\d{2}\.?\d{1,2}|[0-9A-HJ-NP-Z]{7})$",
}
_NDC_FORM: Final = r"^(\d{11}|\d{4,5}-\d{3,4}-\d{1,2})$"
_TARGET: Final = {"diagnosis": "ICD10CM", "procedure": "ICD10PCS"}


def code_columns(kind: Kind) -> CodeColumns:
    """Return the columns that :func:`look_up` adds, with their code systems, in the order in which they decide."""
    if kind == "medication":
        return {"atc": "atc_of_rxnorm", "ndc": "ndc", "name": "name"}
    systems = {"icd9": "icd9", "icd10": "icd10"} | ({"form": "icd_undotted"} if kind == "diagnosis" else {})
    source = SystemColumn("system", systems, title="source vocabulary", refuse=False)
    return {"code": source, "icd10": "icd10_of_snomed"}


def look_up(kind: Kind, vocabulary: Vocabulary) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Return what turns distinct keys into codes."""
    return partial(_drug_codes if kind == "medication" else partial(_icd_codes, kind), vocabulary=vocabulary)


def _icd_codes(kind: str, keys: pl.DataFrame, *, vocabulary: Vocabulary) -> pl.DataFrame:
    """Add ``code``, ``system`` (icd9, icd10, by form, or the vocabulary's name) and ``icd10`` (through SNOMED)."""
    icd = _ICD_VOCABULARIES[kind]
    joined = _with_concepts(keys, vocabulary)
    value = pl.col("source_value").str.strip_chars().str.to_uppercase()
    is_own = (pl.col("source_concept") >= FIRST_LOCAL_CONCEPT).fill_null(False)
    by_form = value.str.contains(_ICD_FORM[kind]) & ~is_own & pl.col("source_vocabulary").is_null()
    if kind == "diagnosis":
        is_icd9 = pl.col("source_concept").is_between(*ICD9CM_CONCEPTS)
        version = pl.when(is_icd9).then(pl.lit("icd9")).otherwise(pl.lit("form"))
    else:
        version = pl.when(value.str.len_chars() == 7).then(pl.lit("icd10")).otherwise(pl.lit("icd9"))
    source_is_icd = pl.col("source_vocabulary").is_in(list(icd)).fill_null(False)
    standard_is_icd = pl.col("standard_vocabulary").is_in(list(icd)).fill_null(False)
    first = pl.when(source_is_icd).then(pl.lit("source")).when(by_form).then(pl.lit("form"))
    found = joined.with_columns(first.when(standard_is_icd).then(pl.lit("standard")).alias("by"))
    by = pl.col("by")
    code = (
        pl.when(by == "source").then("source_code").when(by == "form").then(value).when(by == "standard")
        .then("standard_code")
    )  # fmt: skip
    system = (
        pl.when(by == "source")
        .then(pl.col("source_vocabulary").replace_strict(icd, default=None, return_dtype=pl.String))
        .when(by == "form")
        .then(version)
        .when(by == "standard")
        .then(pl.col("standard_vocabulary").replace_strict(icd, default=None, return_dtype=pl.String))
        .otherwise(pl.coalesce("source_vocabulary", pl.when(is_own).then(pl.lit("own")), pl.lit("unknown")))
    )
    through = vocabulary.icd10_of(found.filter(by.is_null())["standard_concept"], _TARGET[kind])
    return (
        found.with_columns(code.alias("code"), system.alias("system"))
        .join(
            through.rename({"concept_id": "standard_concept", "code": "icd10"}),
            on="standard_concept",
            how="left",
            maintain_order="left",
        )
        .select(*KEYS, "system", "code", pl.when(by.is_null()).then("icd10").alias("icd10"))
    )


def _drug_codes(keys: pl.DataFrame, *, vocabulary: Vocabulary) -> pl.DataFrame:
    """Add ``atc`` (classes above the standard concept), ``ndc`` and ``name``."""
    value = pl.col("source_value").str.strip_chars()
    is_ndc = value.str.contains(_NDC_FORM)
    ndc = pl.when(pl.col("source_vocabulary") == "NDC").then("source_code").when(is_ndc).then(value)
    # A number that is not an NDC is a code of the site and says nothing to a reader of names.
    written = pl.when(~is_ndc & value.str.contains("[A-Za-z]{3}")).then(value)
    joined = _with_concepts(keys, vocabulary).join(
        vocabulary.atc_of(keys["standard_concept"]).rename({"concept_id": "standard_concept"}),
        on="standard_concept",
        how="left",
        maintain_order="left",
    )
    return joined.select(
        *KEYS, "atc", ndc.alias("ndc"), pl.coalesce(written, "standard_name", "source_name").alias("name")
    )


def _with_concepts(keys: pl.DataFrame, vocabulary: Vocabulary) -> pl.DataFrame:
    """Add vocabulary, code and name of the source concept and of the standard concept."""
    typed = keys.select("source_value", pl.col("source_concept", "standard_concept").cast(pl.Int64))
    known = vocabulary.concepts(pl.concat([typed["source_concept"], typed["standard_concept"].alias("source_concept")]))
    for role in ("source", "standard"):
        of_role = known.select(
            pl.col("concept_id").alias(f"{role}_concept"),
            pl.col("vocabulary", "code", "name").name.prefix(f"{role}_"),
        )
        typed = typed.join(of_role, on=f"{role}_concept", how="left", maintain_order="left")
    return typed
