"""Attack for a number of minutes, and end with one line of counts: ``python -m attack --minutes 60``."""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from attack.flips import FlipAttack
from attack.forms import FormAttack
from attack.injections import InjectionAttack
from attack.kills import KillAttack
from attack.leaks import PLANTS, is_caught
from attack.outcome import Counts
from attack.setting_words import SettingAttack
from attack.shares import attack_in_workers
from attack.stage import Stage
from attack.tables import TableAttack
from patients_like_me.workers import read_workers, slots_of

#: How the time is shared out: kills take the longest, and tables are what hospitals send.
SHARES = {"tables": 0.36, "forms": 0.07, "settings": 0.08, "flips": 0.13, "kills": 0.31, "injections": 0.05}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="the first seed; default: from the clock")
    parser.add_argument("--only", choices=sorted(SHARES), action="append", help="only these attacks; repeatable")
    parser.add_argument("--workers", help="several at once: a number of processes, or dask://HOST:PORT")
    options = parser.parse_args()
    if options.workers:
        return _attack_in_workers(options)
    warnings.simplefilter("ignore")
    # A setting that asks for terabytes must not take the machine with it.
    resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))
    first = int(time.time()) % 1_000_000 * 1000 if options.seed is None else options.seed
    counts = Counts()
    with tempfile.TemporaryDirectory(prefix="plm-attack-") as name:
        room = Path(name)
        os.environ["PLM_CODES"] = str(room / "codes")
        stage = Stage.built(room)
        with KillAttack(stage).serving() as kills:
            attacks: dict[str, Callable[[int, Counts], object]] = {
                "tables": TableAttack(room / "tables").attack,
                "forms": FormAttack(room / "forms").attack,
                "settings": SettingAttack(stage).attack,
                "flips": FlipAttack(stage).attack,
                "kills": kills.attack,
                "injections": InjectionAttack(stage).attack,
            }
            chosen = {name: attacks[name] for name in options.only or SHARES}
            _attack(chosen, counts, first, 60 * options.minutes)
    for number, plant in enumerate(PLANTS):
        counts.leaks_planted += 1
        counts.leaks_caught += is_caught(plant, seed=first % 1000 + number)
    sys.stdout.write(f"{counts.line()}\n")
    return int(bool(counts.stories))


def _attack_in_workers(options: argparse.Namespace) -> int:
    """Let every worker attack for the whole time, and add up what they found."""
    workers = read_workers(options.workers)
    with tempfile.TemporaryDirectory(prefix="plm-attack-") as name:
        seed = int(time.time()) % 1_000_000 * 1000 if options.seed is None else options.seed
        line, stories = attack_in_workers(Path(name), workers, slots_of(workers), options.minutes, seed)
    for story in stories:
        sys.stderr.write(f"{story}\n\n")
    sys.stdout.write(f"{line}\n")
    return int(bool(stories))


def _attack(attacks: dict[str, Callable[[int, Counts], object]], counts: Counts, seed: int, seconds: float) -> None:
    """Give every attack its share of the time, always the one that is furthest behind."""
    started, used = time.monotonic(), dict.fromkeys(attacks, 0.0)
    while time.monotonic() - started < seconds:
        name = min(attacks, key=lambda name: used[name] / SHARES[name])
        before, stories = time.monotonic(), len(counts.stories)
        try:
            attacks[name](seed, counts)
        except Exception as error:
            counts.blame("tracebacks", f"{name} seed {seed}: the attack itself failed: {error!r}")
        used[name] += time.monotonic() - before
        seed += 1
        for story in counts.stories[stories:]:
            sys.stderr.write(f"{story}\n\n")
            sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
