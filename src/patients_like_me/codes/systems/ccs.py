"""CCS categories, as given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from patients_like_me.codes.ccs import ccs_categories, ccs_kind, ccs_names
from patients_like_me.codes.registry import CodeSystem, Kind, kept_as_given

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore


def keep_categories(kind: Kind, codes: pl.Series, store: CodeStore) -> pl.DataFrame:
    """Keep the numbers that are categories of CCS."""
    del store
    return kept_as_given(codes, codes.is_in(ccs_categories(ccs_kind(kind))["ccs"].implode()))


CODE_SYSTEM = CodeSystem(
    name="ccs",
    titles={"diagnosis": "ccs", "procedure": "ccs"},
    mapper=keep_categories,
    names=ccs_names,
)
