"""A tiny hospital in MIMIC-IV's form, written again for each test."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_hospital import TABLES

from patients_like_me.codes.store import CodeStore


@pytest.fixture
def store(tmp_path: Path) -> CodeStore:
    """Return an empty store of code tables, so that nothing on this machine matters."""
    return CodeStore(tmp_path / "codes")


@pytest.fixture
def write_hospital(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes the tiny hospital, with some tables changed (lines), left out (None) or raw."""

    def write(
        name: str = "hospital",
        *,
        ending: str = ".csv",
        upper: bool = False,
        **changed: list[str] | bytes | None,
    ) -> Path:
        folder = tmp_path / name / "hosp"
        folder.mkdir(parents=True)
        for table, lines in {**TABLES, **changed}.items():
            if lines is None:
                continue
            path = folder / f"{table.upper() if upper else table}{ending}"
            if isinstance(lines, bytes):
                path.write_bytes(lines)
                continue
            header = lines[0].upper() if upper else lines[0]
            content = ("\n".join([header, *lines[1:]]) + "\n").encode()
            path.write_bytes(gzip.compress(content) if ending.endswith(".gz") else content)
        return folder.parent

    return write
