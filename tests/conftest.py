"""Fixtures every room may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["dask_cluster", "private_postgres", "tiny_runs"]

# Timed examples would fail on a busy machine for no fault of the code. PLM_EXAMPLES=1000 looks longer.
settings.register_profile("steady", deadline=None, max_examples=int(os.environ.get("PLM_EXAMPLES", "30")))
settings.load_profile("steady")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real public records, or skip where it is absent."""
    folder = Path(os.environ.get("PLM_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("the real public records (../shared/data or PLM_SHARED_DATA) are not on this machine")
    return folder
