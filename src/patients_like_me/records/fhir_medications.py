"""The drugs of FHIR's medication resources: coded in place, contained, or in a Medication that they refer to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import counted
from patients_like_me.records.dialects.fhir import FhirDialect
from patients_like_me.records.fhir_elements import best_coding, id_of, referred_id
from patients_like_me.records.source_files import SourceTable

_DEEPEST_MIXTURE: Final = 4
#: Takes the place of a code system where a row refers to a Medication that is not there, and says nothing else.
NO_MEDICATION: Final = "(no such Medication)"


def medication_codes(table: SourceTable | None, systems: dict[str, str], dialect: FhirDialect) -> pl.DataFrame:
    """Return the codes and names of every Medication; a mixture without a code of its own has a row for each part."""
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
    is_mixed = (pl.col("ingredient").list.len() > 0).fill_null(False)
    is_mixed &= ~pl.col("system").is_in(list(systems)).fill_null(False)
    mixed = simple.filter(is_mixed).explode("ingredient").select(
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
    known = pl.concat([simple.filter(~is_mixed).select(list(schema)), described.select(list(schema))])
    referring = mixed.filter(pl.col("of").is_not_null()).select("drug", "of")
    # A mixture may be made of mixtures; one that refers to itself ends with the number of steps.
    for _ in range(_DEEPEST_MIXTURE):
        parts = referring.join(known.rename({"drug": "of"}), on="of", how="inner").select(list(schema))
        known = pl.concat([known, parts]).unique(maintain_order=True)
    # A part that is not there is told like a drug that is not there.
    lost = referring.join(known, left_on="of", right_on="drug", how="anti", maintain_order="left").select(
        "drug",
        pl.lit(NO_MEDICATION).alias("system"),
        *(pl.lit(None, pl.String).alias(name) for name in ("code", "name")),
    )
    return pl.concat([known.cast(schema), lost.unique(maintain_order=True).cast(schema)])


def name_of(concept: pl.Expr) -> pl.Expr:
    """Return what a concept is called: its text, or how its first coding is displayed."""
    coding = concept.struct.field("coding").list.first()
    return pl.coalesce(concept.struct.field("text"), coding.struct.field("display"))


def with_drugs(
    frame: pl.LazyFrame, drugs: pl.DataFrame, systems: dict[str, str], places: list[pl.Expr], mark: pl.Expr
) -> pl.LazyFrame:
    """Name the drugs of each row: its own coding, that of a contained Medication, or those of the one it refers to.

    ``places`` are the columns to keep; ``mark`` takes the place of the code system where it is not null, and
    ``NO_MEDICATION`` where a row has nothing but a reference that leads nowhere.
    """
    reference = pl.col("medicationReference").struct.field("reference")
    concept = pl.coalesce("medicationCodeableConcept", _contained(reference).struct.field("code"))
    coding = best_coding(pl.col("concept"), systems)
    own = frame.select(
        *places,
        concept.alias("concept"),
        mark.alias("mark"),
        reference.is_not_null().alias("refers"),
        pl.when(~reference.str.starts_with("#")).then(id_of(reference)).alias("drug"),
    ).select(
        *(place.meta.output_name() for place in places),
        "drug",
        (pl.col("refers") & pl.col("concept").is_null()).alias("refers"),
        pl.coalesce("mark", coding.struct.field("system")).alias("own system"),
        coding.struct.field("code").alias("own code"),
        name_of(pl.col("concept")).alias("own name"),
    )
    known = drugs.lazy().with_columns(pl.lit(True).alias("found"))
    nowhere = pl.when(pl.col("refers") & pl.col("found").is_null()).then(pl.lit(NO_MEDICATION))
    named = {name: pl.coalesce(f"own {name}", name) for name in ("system", "code", "name")}
    return own.join(known, on="drug", how="left", maintain_order="left").select(
        *(place.meta.output_name() for place in places),
        pl.coalesce(named["system"], nowhere).alias("system"),
        named["code"].alias("code"),
        named["name"].alias("name"),
    )


def tell_dangling(resource: str, path: Path) -> Callable[[pl.DataFrame], list[str]]:
    """Return what says how many rows refer to a Medication that is not there, and refuses where all do."""

    def remarks(keys: pl.DataFrame) -> list[str]:
        dangling = int(keys.filter(pl.col("system") == NO_MEDICATION)["rows"].sum())
        if not dangling:
            return []
        if dangling == keys["rows"].sum():
            raise PlmError(
                f"'{path}': none of the {dangling:,} medication references leads to a Medication",
                remedy=f"export Medication too, or remove the {resource} files to go without them",
            )
        return [
            counted(
                dangling,
                f"medication reference of {resource} leads to no Medication: its drug is unmapped",
                f"medication references of {resource} lead to no Medication: their drugs are unmapped",
            )
        ]

    return remarks


def _contained(reference: pl.Expr) -> pl.Expr:
    """Return the contained resource that a reference (``#id``) names."""
    ids = pl.col("contained").list.eval(pl.element().struct.field("id").fill_null("")).list.join("|")
    listed = pl.concat_str(pl.lit("|"), ids, pl.lit("|"))
    wanted = pl.concat_str(pl.lit("|"), reference.str.strip_prefix("#"), pl.lit("|"))
    place = listed.str.head(listed.str.find(wanted, literal=True)).str.count_matches("|", literal=True)
    return pl.col("contained").list.get(place, null_on_oob=True)
