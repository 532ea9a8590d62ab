"""Drug names as hospitals write them, to ATC-3 through the table of ingredients inside the package.

Ways: ``name``, or ``not_a_medicine`` where the name is known to be none (water for injection, flushes, supplies).
``usual_name`` is for sources that number their drugs: where a row gives only the number, the reader gives the name that
the source usually writes for it, which is counted as a way of its own.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from patients_like_me.codes.atc import atc3_names
from patients_like_me.codes.coverage import UNMAPPED
from patients_like_me.codes.registry import CodeSystem, Kind

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore

_NOT_A_MEDICINE: Final = "not_a_medicine"


def name_to_atc3(kind: Kind, codes: pl.Series, store: CodeStore, *, way: str = "name") -> pl.DataFrame:
    """Map drug names; the reading of a name is described in ``codes/drug_names.py``."""
    from patients_like_me.codes.drug_names import match_drug_names

    del kind, store
    rows = [
        (list(match.atc3), way if match.atc3 else _NOT_A_MEDICINE if match.kind == _NOT_A_MEDICINE else UNMAPPED)
        for match in match_drug_names(codes.to_list())
    ]
    return pl.DataFrame(rows, schema={"codes": pl.List(pl.String), "way": pl.String}, orient="row")


CODE_SYSTEM = (
    CodeSystem(
        name="name",
        titles={"medication": "name"},
        mapper=name_to_atc3,
        target="ATC-3",
        names=atc3_names,
        set_apart=(_NOT_A_MEDICINE,),
        default_for=("medication",),
    ),
    CodeSystem(
        name="usual_name",
        titles={"medication": "usual name"},
        mapper=partial(name_to_atc3, way="usual_name"),
        target="ATC-3",
        names=atc3_names,
        set_apart=(_NOT_A_MEDICINE,),
    ),
)
