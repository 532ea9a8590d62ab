"""The drugs of FHIR's medication resources: coded in place, contained, or in a Medication that they refer to."""

from __future__ import annotations

import polars as pl

from patients_like_me.records.dialects.fhir import FhirDialect
from patients_like_me.records.fhir_elements import best_coding, id_of, referred_id
from patients_like_me.records.source_files import SourceTable


def medication_codes(table: SourceTable | None, systems: dict[str, str], dialect: FhirDialect) -> pl.DataFrame:
    """Return the codes and names of every Medication; one made of others has a row for each of them."""
    schema = pl.Schema(dict.fromkeys(("drug", "system", "code", "name"), pl.String()))
    if table is None:
        return pl.DataFrame(schema=schema)
    rows = table.collect()
    coding = best_coding(pl.col("code"), systems)
    names = pl.col("identifier").list.filter(pl.element().struct.field("system").is_in(list(dialect.medication_names)))
    simple = rows.select(
        pl.col("id").alias("drug"),
        coding.struct.field("system").alias("system"),
        coding.struct.field("code").alias("code"),
        pl.coalesce(names.list.first().struct.field("value"), name_of(pl.col("code"))).alias("name"),
        pl.col("ingredient"),
    )
    mixed = simple.filter(pl.col("ingredient").list.len() > 0).explode("ingredient").select(
        "drug",
        referred_id(pl.col("ingredient").struct.field("itemReference")).alias("of"),
        pl.col("ingredient").struct.field("itemCodeableConcept").alias("concept"),
    )  # fmt: skip
    item = best_coding(pl.col("concept"), systems)
    described = mixed.filter(pl.col("of").is_null()).select(
        "drug",
        item.struct.field("system").alias("system"),
        item.struct.field("code").alias("code"),
        name_of(pl.col("concept")).alias("name"),
    )
    plain = simple.filter(pl.col("ingredient").list.len().fill_null(0) == 0).drop("ingredient")
    referred = mixed.join(plain.rename({"drug": "of"}), on="of", how="inner").select(list(schema))
    return pl.concat([plain.select(list(schema)), referred, described.select(list(schema))]).cast(schema)


def name_of(concept: pl.Expr) -> pl.Expr:
    """Return what a concept is called: its text, or how its first coding is displayed."""
    coding = concept.struct.field("coding").list.first()
    return pl.coalesce(concept.struct.field("text"), coding.struct.field("display"))


def with_drugs(
    frame: pl.LazyFrame, drugs: pl.DataFrame, systems: dict[str, str], where: pl.Expr, time: pl.Expr
) -> pl.LazyFrame:
    """Name the drugs of each row: its own coding, that of a contained Medication, or those of the one it refers to."""
    inside = pl.col("contained").list.filter(pl.element().struct.field("resourceType") == "Medication").list.first()
    concept = pl.coalesce("medicationCodeableConcept", inside.struct.field("code"))
    reference = pl.col("medicationReference").struct.field("reference")
    coding = best_coding(pl.col("concept"), systems)
    own = frame.select(
        referred_id(where).alias("encounter id"),
        time.alias("time"),
        concept.alias("concept"),
        pl.when(~reference.str.starts_with("#")).then(id_of(reference)).alias("drug"),
    ).select(
        "encounter id",
        "time",
        "drug",
        coding.struct.field("system").alias("own system"),
        coding.struct.field("code").alias("own code"),
        name_of(pl.col("concept")).alias("own name"),
    )
    return own.join(drugs.lazy(), on="drug", how="left", maintain_order="left").select(
        "encounter id", "time", *(pl.coalesce(f"own {name}", name).alias(name) for name in ("system", "code", "name"))
    )
