"""A Dask cluster of real worker processes on this machine, started and ended by the tests."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


def write_slowly(folder: str, number: int) -> None:
    """Write the file of a part. It is here because workers cannot import a file of tests, however pytest is started."""
    time.sleep(0.05)
    (Path(folder) / f"{number}.txt").write_text(str(number))


@dataclass(frozen=True)
class TestedCluster:
    """A scheduler in this process and worker processes beside it, each with one thread."""

    __test__ = False
    cluster: Any

    @property
    def workers(self) -> str:
        """What ``--workers`` is given."""
        return str(self.cluster.scheduler_address).replace("tcp://", "dask://")

    def process_ids(self) -> list[int]:
        """Return the process of every worker that is there at this moment."""
        return [nanny.pid for nanny in self.cluster.workers.values() if nanny.pid is not None]

    def kill_one(self, number: int) -> None:
        """Kill a worker as a machine that is switched off would; another process takes its place."""
        alive = self.process_ids()
        if alive:
            os.kill(alive[number % len(alive)], signal.SIGKILL)


@pytest.fixture(scope="session")
def dask_cluster() -> Iterator[TestedCluster]:
    """Start four worker processes, or skip where Dask is not installed."""
    distributed = pytest.importorskip("distributed", reason="Dask (the extra 'cluster') is not installed")
    with distributed.LocalCluster(
        n_workers=4, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", silence_logs=50
    ) as cluster:
        yield TestedCluster(cluster)
