"""Codes of the hospital's own, as given; an own table may name them in ``names``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from patients_like_me.codes.registry import KINDS, CodeSystem, Kind, kept_as_given

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore


def keep_codes(kind: Kind, codes: pl.Series, store: CodeStore) -> pl.DataFrame:
    """Keep every code."""
    del kind, store
    return kept_as_given(codes)


CODE_SYSTEM = CodeSystem(name="own", titles=dict.fromkeys(KINDS, "own"), mapper=keep_codes)
