"""Draw some patients of own tables, with all their visits: ``plm prepare tables`` reads the result like the whole.

python examples/sample_tables.py meps_drugs --patients 10000 --seed 0 --out meps-10000
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polars as pl

TABLES = ("visits", "events", "labels")


def sample(source: Path, out: Path, *, patients: int, seed: int) -> int:
    """Write the visits, events and labels of patients drawn at random; return how many patients there are."""
    visits = pl.read_parquet(source / "visits.parquet")
    known = visits["subject_id"].unique().sort()
    drawn = known.sample(min(patients, len(known)), seed=seed)
    kept = visits.filter(pl.col("subject_id").is_in(drawn.implode()))
    out.mkdir(parents=True)
    kept.write_parquet(out / "visits.parquet")
    for name in TABLES[1:]:
        if (source / f"{name}.parquet").exists():
            table = pl.read_parquet(source / f"{name}.parquet")
            table.join(kept.select("visit_id"), on="visit_id", how="semi").write_parquet(out / f"{name}.parquet")
    return len(drawn)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "source", type=Path, help="a folder with visits.parquet, events.parquet and perhaps labels.parquet"
    )
    parser.add_argument("--patients", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    print(f"{sample(given.source, given.out, patients=given.patients, seed=given.seed):,} patients in {given.out}")  # noqa: T201
