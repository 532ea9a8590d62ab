"""An attack by many workers: each attacks for the same time with seeds of its own, and the counts are added up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from patients_like_me.files import write_json
from patients_like_me.workers import Workers, in_workers

#: Seeds that lie between those of two workers.
APART = 10_000_000


def attack_in_workers(folder: Path, workers: Workers, shares: int, minutes: float, seed: int) -> tuple[str, list[str]]:
    """Let so many workers attack; return the line of all counts, and the stories of what went wrong."""
    parts = [(str(folder), number, str(minutes), seed + APART * number) for number in range(shares)]
    in_workers(attack_share, parts, workers=workers, is_done=lambda part: _file_of(part[0], part[1]).is_file())
    total: Counter[str] = Counter()
    stories: list[str] = []
    for place, number, _, _ in parts:
        found = json.loads(_file_of(place, number).read_text())
        total.update(found["counts"])
        stories += found["stories"]
    return json.dumps(dict(total)), stories


def attack_share(folder: str, number: int, minutes: str, seed: int) -> None:
    """Attack in a process of its own, whose signals and limits are not the worker's. What a worker runs."""
    tests = str(Path(__file__).parents[1])
    known = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "attack", "--minutes", minutes, "--seed", str(seed)]
    told = subprocess.run(command, env={**os.environ, "PYTHONPATH": known}, capture_output=True, text=True, check=False)
    lines = told.stdout.splitlines()
    counts = json.loads(lines[-1]) if lines else {"tracebacks": 1}
    stories = [told.stderr.strip()] if told.returncode else []
    write_json(_file_of(folder, number), {"counts": counts, "stories": stories})


def _file_of(folder: str, number: int) -> Path:
    return Path(folder) / f"share-{number:04d}.json"
