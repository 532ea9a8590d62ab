"""The OHDSI vocabularies (Athena): what a concept number stands for, and the ways from SNOMED to ICD and RxNorm to ATC.

The tables CONCEPT, CONCEPT_RELATIONSHIP and CONCEPT_ANCESTOR come from a folder (Athena's own tab-separated files, CSV
or Parquet) or from the records' own folder or database. They hold tens of millions of rows: each question is one pass
that keeps only the concepts that were asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.records.file_errors import explained
from patients_like_me.records.file_scans import header_of
from patients_like_me.records.source_files import SourceFolder

#: The columns that are read of each table.
VOCABULARY_TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "concept": ("concept_id", "concept_name", "vocabulary_id", "concept_class_id", "concept_code"),
    "concept_relationship": ("concept_id_1", "concept_id_2", "relationship_id", "invalid_reason"),
    "concept_ancestor": ("ancestor_concept_id", "descendant_concept_id", "min_levels_of_separation"),
}
#: The class of Athena's concepts for the third level of ATC, such as C03C.
ATC_THIRD: Final = "ATC 3rd"
_CONCEPTS: Final = {
    "concept_id": pl.Int64(),
    "name": pl.String(),
    "vocabulary": pl.String(),
    "class": pl.String(),
    "code": pl.String(),
}


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary tables that are there, each as a scan of all its rows; an empty one knows nothing."""

    tables: Mapping[str, pl.LazyFrame]

    @classmethod
    def found(cls, source: SourceFolder, folder: str) -> Vocabulary:
        """Open the tables of a vocabulary folder, or those next to the records; say what is missing."""
        place = SourceFolder((Path(folder),), "the vocabulary") if folder else source
        tables = {}
        for name, columns in VOCABULARY_TABLES.items():
            paths = place.find(name, required=bool(folder) and name == "concept")
            if len(paths) > 1:
                raise PlmError(f"the vocabulary table '{name}' is in several parts", remedy="give it as one file")
            for path in paths:
                tables[name] = _scanned(path, columns)
                source.fingerprints.setdefault(path.name, {"bytes": path.stat().st_size})
        if lost := [lost for name, lost in _LOST.items() if name not in tables]:
            source.notes.append(lost[0])
        return cls(tables)

    def concepts(self, ids: pl.Series) -> pl.DataFrame:
        """Return ``concept_id, name, vocabulary, class, code`` of those concepts that are known."""
        wanted = _wanted(ids)
        return self._concepts(pl.col("concept_id").is_in(wanted.implode())) if len(wanted) else _no_concepts()

    def icd10_of(self, ids: pl.Series, vocabulary: str) -> pl.DataFrame:
        """Return ``concept_id, code``: the ICD-10 code (ICD10CM or ICD10PCS) that stands for a SNOMED concept.

        Of the codes that map to the concept one is taken: codes that map to nothing else first, then codes that can be
        billed, then the shortest, then the first. Where none maps to the concept itself, the nearest concept above
        it decides.
        """
        nothing = pl.DataFrame(schema={"concept_id": pl.Int64, "code": pl.String})
        wanted = _wanted(ids)
        if not len(wanted) or not {"concept", "concept_relationship"} <= set(self.tables):
            return nothing
        by_concept = self._icd10_by_concept[vocabulary]
        direct = wanted.to_frame("concept_id").join(by_concept, on="concept_id")
        left = wanted.filter(~wanted.is_in(direct["concept_id"].implode()))
        if not len(left) or "concept_ancestor" not in self.tables:
            return direct
        above = (
            self.tables["concept_ancestor"]
            .filter(
                pl.col("descendant_concept_id").is_in(left.implode()),
                pl.col("ancestor_concept_id").is_in(by_concept["concept_id"].implode()),
            )
            .collect(engine="streaming")
            .sort("descendant_concept_id", "min_levels_of_separation", "ancestor_concept_id")
            .unique("descendant_concept_id", keep="first", maintain_order=True)
            .join(by_concept, left_on="ancestor_concept_id", right_on="concept_id")
            .select(pl.col("descendant_concept_id").alias("concept_id"), "code")
        )
        return pl.concat([direct, above])

    def atc_of(self, ids: pl.Series) -> pl.DataFrame:
        """Return ``concept_id, atc``: the third-level ATC classes above a drug, separated by commas."""
        wanted = _wanted(ids)
        if not len(wanted) or not {"concept", "concept_ancestor"} <= set(self.tables):
            return pl.DataFrame(schema={"concept_id": pl.Int64, "atc": pl.String})
        classes = self._concepts((pl.col("vocabulary_id") == "ATC") & (pl.col("concept_class_id") == ATC_THIRD))
        pairs = (
            self.tables["concept_ancestor"]
            .filter(
                pl.col("descendant_concept_id").is_in(wanted.implode()),
                pl.col("ancestor_concept_id").is_in(classes["concept_id"].implode()),
            )
            .collect(engine="streaming")
        )
        return (
            pairs.join(classes, left_on="ancestor_concept_id", right_on="concept_id")
            .group_by(pl.col("descendant_concept_id").alias("concept_id"))
            .agg(pl.col("code").unique().sort().str.join(",").alias("atc"))
        )

    def _concepts(self, condition: pl.Expr) -> pl.DataFrame:
        if "concept" not in self.tables:
            return _no_concepts()
        found = self.tables["concept"].filter(condition).collect(engine="streaming")
        return found.select(
            "concept_id",
            pl.col("concept_name").alias("name"),
            pl.col("vocabulary_id").alias("vocabulary"),
            pl.col("concept_class_id").alias("class"),
            pl.col("concept_code").alias("code"),
        ).unique("concept_id", keep="first", maintain_order=True)

    @cached_property
    def _icd10_by_concept(self) -> dict[str, pl.DataFrame]:
        """For every standard concept the code that stands for it, by the vocabulary of the code."""
        vocabularies = ("ICD10CM", "ICD10PCS")
        codes = self._concepts(pl.col("vocabulary_id").is_in(vocabularies))
        pairs = (
            self.tables["concept_relationship"]
            .filter(
                pl.col("relationship_id") == "Maps to",
                pl.col("invalid_reason").is_null() | (pl.col("invalid_reason") == ""),
                pl.col("concept_id_1").is_in(codes["concept_id"].implode()),
            )
            .collect(engine="streaming")
            .join(codes, left_on="concept_id_1", right_on="concept_id")
            .with_columns(pl.len().over("concept_id_1").alias("meanings"))
        )
        order = [
            "concept_id_2",
            "meanings",
            pl.col("class").str.contains("(?i)nonbill"),
            pl.col("code").str.len_chars(),
            "code",
        ]
        best = pairs.sort(order).unique(["concept_id_2", "vocabulary"], keep="first", maintain_order=True)
        return {
            name: best.filter(pl.col("vocabulary") == name).select(pl.col("concept_id_2").alias("concept_id"), "code")
            for name in vocabularies
        }


#: What cannot be done without a table, the first that is missing being told.
_LOST: Final = {
    "concept": (
        "no vocabulary (table 'concept') is there: source values are read by their form, standard SNOMED and RxNorm "
        "concepts are not used, and rows that have only those stay unmapped"
    ),
    "concept_relationship": (
        "the vocabulary has no table 'concept_relationship': SNOMED concepts without an ICD source stay unmapped"
    ),
    "concept_ancestor": (
        "the vocabulary has no table 'concept_ancestor': drugs are mapped by NDC and name, not by their RxNorm class"
    ),
}


def _wanted(ids: pl.Series) -> pl.Series:
    """Return the distinct concept numbers; 0 means that there is none."""
    distinct = ids.cast(pl.Int64).drop_nulls().unique().sort()
    return distinct.filter(distinct != 0)


def _no_concepts() -> pl.DataFrame:
    return pl.DataFrame(schema=_CONCEPTS)


def _scanned(path: Path, columns: Sequence[str]) -> pl.LazyFrame:
    """Scan a table of the vocabulary; Athena's files are called .csv, are separated by tabs and quote nothing."""
    header = header_of(path)
    by_tab = len(header) == 1 and "\t" in header[0]
    names = header[0].split("\t") if by_tab else header
    by_lower = {name.strip().lower(): name for name in names}
    if missing := [name for name in columns if name not in by_lower]:
        raise PlmError(
            f"'{path}' has no column {', '.join(map(repr, missing))}",
            remedy="give the vocabulary as Athena delivers it",
        )
    with explained(path):
        if path.suffix.lower() == ".parquet":
            scanned = pl.scan_parquet(path, glob=False)
        elif by_tab:
            scanned = pl.scan_csv(path, separator="\t", quote_char=None, infer_schema=False, glob=False)
        else:
            scanned = pl.scan_csv(path, infer_schema=False, glob=False)
        return scanned.select(
            pl.col(by_lower[name]).cast(pl.Int64 if _is_number(name) else pl.String).alias(name) for name in columns
        )


def _is_number(column: str) -> bool:
    return "concept_id" in column or column.startswith("min_")
