"""Code maps: ICD to CCS, NDC to RxNorm to ATC-3, drug names to ATC-3, and how much each of them covered.

``ccs`` maps diagnoses and procedures, ``medications`` maps prescriptions, ``store`` keeps the tables that a
user installs with ``plm codes add``, and ``coverage`` records which way mapped how many rows and what
stayed unmapped. The names below are loaded when they are first used, so that importing this package costs
nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from patients_like_me.codes.ccs import ccs_chapter, ccs_name, load_ccs_map, map_icd
    from patients_like_me.codes.coverage import MapCoverage, measure_coverage
    from patients_like_me.codes.medications import map_medications
    from patients_like_me.codes.store import CodeStore

__all__ = [
    "CodeStore",
    "MapCoverage",
    "ccs_chapter",
    "ccs_name",
    "load_ccs_map",
    "map_icd",
    "map_medications",
    "measure_coverage",
]

_HOME = {
    "CodeStore": "store",
    "MapCoverage": "coverage",
    "ccs_chapter": "ccs",
    "ccs_name": "ccs",
    "load_ccs_map": "ccs",
    "map_icd": "ccs",
    "map_medications": "medications",
    "measure_coverage": "coverage",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
