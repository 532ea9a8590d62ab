"""The synthetic hospital in any form: written as MIMIC-IV's tables first, then in the form that was asked for."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

from patients_like_me.errors import PlmError
from patients_like_me.records.forms.form import all_forms
from patients_like_me.records.synthetic import SyntheticSummary, write_synthetic_hospital

MIMIC4: Final = "mimic4"


def form_names() -> list[str]:
    """Return the forms that can be asked for, MIMIC-IV's first."""
    return [MIMIC4, *sorted(all_forms())]


def write_synthetic_hospital_as(form: str, out: Path, **settings: Any) -> SyntheticSummary:
    """Write a synthetic hospital in a form; the settings are those of :func:`write_synthetic_hospital`.

    >>> folder = Path(tempfile.mkdtemp()) / "hospital"
    >>> write_synthetic_hospital_as("tables", folder, patients=3).patients
    3
    >>> sorted(path.name for path in folder.iterdir())
    ['SYNTHETIC.json', 'events.parquet', 'visits.parquet']
    """
    if form not in form_names():
        raise PlmError(f"there is no form '{form}'", remedy=f"choose one of {', '.join(form_names())}")
    if form == MIMIC4:
        return write_synthetic_hospital(out, **settings)
    if out.exists():
        raise PlmError(f"'{out}' exists already", remedy="choose another name or remove it")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        summary = write_synthetic_hospital(Path(scratch) / MIMIC4, **{**settings, "compress": False})
        all_forms()[form].write(Path(scratch) / MIMIC4, out)
    return summary
