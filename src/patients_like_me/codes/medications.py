"""Map prescriptions to ATC-3: the NDC first, the drug's name where the NDC leads nowhere.

Ways, in the order in which they are tried; the first that answers decides alone:

``ndc_rxnorm``      NDC to RxCUI to ATC-3 through the installed tables, all RxCUIs and all codes united;
``ndc_table``       NDC to ATC-3 through an installed table that names the codes directly;
``name``            the ingredients in the drug's name, through the table inside the package;
``not_a_medicine``  the name is known to be none: water for injection, flushes, devices, supplies;
``unmapped``        nothing answered.

The NDC goes first because it names one product; a name is short for many. An NDC of ``0`` or blank is
missing, so such rows, among them many insulin rows of MIMIC, are mapped by their names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from patients_like_me.codes.drug_tables import normalised_ndc
from patients_like_me.errors import PlmError

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore

WAYS = ("ndc_rxnorm", "ndc_table", "name", "not_a_medicine", "unmapped")
_ANSWER: dict[str, pl.DataType] = {"atc3": pl.List(pl.String()), "way": pl.String()}


def map_medications(pairs: pl.DataFrame, store: CodeStore, *, use_names: bool = True) -> pl.DataFrame:
    r"""Add ``atc3`` (sorted, empty where nothing answered) and ``way`` to distinct ``ndc, drug`` pairs.

    >>> import tempfile; from pathlib import Path; from patients_like_me.codes.store import CodeStore
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "own.csv").write_text("ndc,atc3\n00002322930,N06B\n")
    >>> store = CodeStore(folder / "codes"); _ = store.add(folder / "own.csv")
    >>> pairs = pl.DataFrame({"ndc": ["0002-3229-30", "0"], "drug": ["Atomoxetine", "Insulin"]})
    >>> map_medications(pairs, store, use_names=False).rows()
    [('0002-3229-30', 'Atomoxetine', ['N06B'], 'ndc_table'), ('0', 'Insulin', [], 'unmapped')]
    """
    if lacking := {"ndc", "drug"} - set(pairs.columns):
        raise PlmError(
            f"the prescriptions lack the column {' and '.join(sorted(lacking))}",
            remedy="give both ndc and drug",
        )
    keyed = pairs.with_columns(_ndc=normalised_ndc(pl.col("ndc")))
    by_ndc = map_ndcs(keyed["_ndc"].drop_nulls().unique(), store)
    mapped = keyed.join(by_ndc, left_on="_ndc", right_on="ndc", how="left", maintain_order="left").drop("_ndc")
    if use_names:
        left = mapped.filter(pl.col("way").is_null())["drug"].drop_nulls().unique(maintain_order=True)
        mapped = mapped.join(
            _map_names(left), on="drug", how="left", maintain_order="left", suffix="_by_name"
        ).with_columns(
            atc3=pl.when(pl.col("way").is_null()).then("atc3_by_name").otherwise("atc3"),
            way=pl.coalesce("way", "way_by_name"),
        )
    return mapped.select(
        *pairs.columns,
        pl.col("atc3").fill_null(pl.lit([], dtype=pl.List(pl.String))),
        pl.col("way").fill_null("unmapped"),
    )


def map_ndcs(ndcs: pl.Series, store: CodeStore) -> pl.DataFrame:
    """Return ``ndc, atc3, way`` of those 11-digit NDCs that the installed tables answer."""
    wanted = pl.DataFrame({"ndc": ndcs}, schema={"ndc": pl.String})
    to_rxcui, to_atc3, direct = (store.table(name) for name in ("ndc_rxcui", "rxcui_atc3", "ndc_atc3"))
    answers = []
    if to_rxcui is not None and to_atc3 is not None:
        answers.append((wanted.join(to_rxcui, on="ndc").join(to_atc3, on="rxcui"), "ndc_rxnorm"))
    if direct is not None:
        answers.append((wanted.join(direct, on="ndc"), "ndc_table"))
    found = pl.DataFrame(schema={"ndc": pl.String(), **_ANSWER})
    for rows, way in answers:
        codes = rows.join(found, on="ndc", how="anti").group_by("ndc").agg(pl.col("atc3").unique().sort())
        found = pl.concat([found, codes.with_columns(way=pl.lit(way))])
    return found.sort("ndc")


def _map_names(drugs: pl.Series) -> pl.DataFrame:
    """Return ``drug, atc3, way`` by name; drugs that the name table does not know have no way."""
    from patients_like_me.codes.drug_names import match_drug_names

    names: list[str] = drugs.to_list()
    rows: list[tuple[str, list[str], str | None]] = []
    for name, match in zip(names, match_drug_names(names), strict=True):
        if match.atc3:
            rows.append((name, sorted(match.atc3), "name"))
        else:
            rows.append((name, [], "not_a_medicine" if match.kind == "not_a_medicine" else None))
    return pl.DataFrame(rows, schema={"drug": pl.String(), **_ANSWER}, orient="row")
