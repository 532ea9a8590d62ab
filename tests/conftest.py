"""Fixtures every room may use."""

from __future__ import annotations

import os
from collections import Counter
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


#: The modules that take longest, the longest first. Two workers take one module after the other: one that began such a
#: module last would work alone at the end. ``--durations=0`` says what tests take.
LONGEST = (
    "systems/test_named_checks.py",
    "attack/test_attack.py",
    "test_readme.py",
    "training/test_run.py",
    "serve/browser/test_in_browser.py",
    "training/test_several_processes.py",
    "tasks/test_planted_leaks.py",
    "systems/test_growing.py",
    "evaluation_experiments/test_runner.py",
    "test_cluster.py",
    "evaluation_experiments/test_engine.py",
    "test_face.py",
    "test_extending.py",
    "systems/test_train.py",
    "report/test_in_browser.py",
    "systems/test_kare.py",
    "evaluation_experiments/test_cluster_jobs.py",
    "systems/test_colacare.py",
    "cli/test_trust.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest modules first, then those of most tests."""
    tests = Counter(item.path for item in items)
    rank = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (rank.get(item.path, len(rank)), -tests[item.path], item.path))
