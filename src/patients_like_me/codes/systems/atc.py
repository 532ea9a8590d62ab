"""ATC codes of any length from the third level on, cut to the third level."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from patients_like_me.codes.atc import all_atc3_codes, atc3_names
from patients_like_me.codes.registry import CodeSystem, Kind, kept_as_given

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore


def cut_to_third_level(kind: Kind, codes: pl.Series, store: CodeStore) -> pl.DataFrame:
    """Cut ATC codes to four characters; what is then no ATC-3 code stays unmapped."""
    del kind, store
    cut = codes.str.to_uppercase().str.slice(0, 4)
    return kept_as_given(cut, cut.is_in(list(all_atc3_codes())))


CODE_SYSTEM = CodeSystem(name="atc", titles={"medication": "atc"}, mapper=cut_to_third_level, names=atc3_names)
