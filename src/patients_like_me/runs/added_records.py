"""What a bank keeps of the instances that were added to it: their records as far as pages show them, and arrays.

The run's own cohort has no row of these patients, so the bank keeps the part of their records that an explanation of
somebody else shows: visits up to the instance, codes, sex, age, times and place. What tells of later events or of the
person beyond that is left out. The files hold patients' data: a run folder needs the same protection as its cohort.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_file, verify_files
from patients_like_me.records.cohort import DEMOGRAPHICS, KINDS, LABEL_COLUMNS, TABLE_OF_KIND, Cohort
from patients_like_me.runs.bank_versions import AdditionRecord
from patients_like_me.runs.predictions import listed_labels
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.task import Task, TaskSettings

ARRAYS: Final = "arrays.safetensors"
INSTANCES: Final = "instances.parquet"
_TABLES: Final = ("patients", "visits", *TABLE_OF_KIND.values(), "vocabulary")
#: What no page shows of a reference: it is not kept.
_LEFT_OUT: Final = ("next_admission_time", "died", *DEMOGRAPHICS)


@dataclass(frozen=True)
class Added:
    """The instances of one addition, in the order of the bank, with the arrays that their system keeps of them.

    ``arrays`` also has ``predicted`` [instances, outputs], the probabilities that were predicted for them before they
    joined, ``linked``, how many references each had then, and ``nearest``, how alike its nearest one was.
    """

    record: AdditionRecord
    instances: Instances
    arrays: Mapping[str, npt.NDArray[Any]]


def kept_part(instances: Instances) -> Instances:
    """Return the instances with the part of their cohort that is kept: visits that one of them may see.

    They are of the split ``train``: references, whose outcomes are known.
    """
    cohort, frame = instances.cohort, instances.frame
    last = frame.group_by("subject").agg(pl.col("visit").max().alias("last"))
    visits = (
        cohort.visits.join(last, on="subject", how="inner", maintain_order="left")
        .filter(pl.col("visit") <= pl.col("last"))
        .with_columns(pl.lit(None).cast(cohort.visits.schema[name]).alias(name) for name in _LEFT_OUT)
        .select(cohort.visits.columns)
    )
    patients = cohort.patients.join(last, on="subject", how="semi", maintain_order="left").with_columns(
        pl.lit(None).cast(cohort.patients.schema["death_time"]).alias("death_time")
    )
    visit_numbers = {old: new for new, old in enumerate(visits["visit"].to_list())}
    subject_numbers = {old: new for new, old in enumerate(patients["subject"].to_list())}

    def renumbered(name: str, numbers: Mapping[int, int]) -> pl.Expr:
        return pl.col(name).replace_strict(numbers, return_dtype=pl.UInt32)

    codes = {
        kind: cohort.codes[kind]
        .filter(pl.col("visit").is_in(visits["visit"].implode()))
        .with_columns(renumbered("visit", visit_numbers))
        for kind in KINDS
    }
    used = pl.concat([codes[kind].select(pl.lit(kind).alias("kind"), "code") for kind in KINDS]).unique()
    part = Cohort(
        patients=patients.with_columns(renumbered("subject", subject_numbers)),
        visits=visits.with_columns(renumbered("visit", visit_numbers), renumbered("subject", subject_numbers)),
        codes=codes,
        vocabulary=cohort.vocabulary.join(used, on=["kind", "code"], how="semi", maintain_order="left"),
        source=cohort.source,
        unordered=cohort.unordered,
        known_hash=cohort.hash,
    )
    moved = frame.with_columns(
        renumbered("visit", visit_numbers),
        renumbered("first_visit", visit_numbers),
        renumbered("subject", subject_numbers),
        pl.lit("train").alias("split"),
    )
    return replace(instances, cohort=part, frame=moved)


def write_added(folder: Path, instances: Instances, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write instances that :func:`kept_part` returned, with their arrays, into the folder of an addition."""
    from safetensors.numpy import save_file

    tables = instances.cohort.tables()
    for name in _TABLES:
        tables[name].write_parquet(folder / f"{name}.parquet")
    frame = instances.frame.with_columns(listed_labels(instances.labels))
    frame.write_parquet(folder / INSTANCES)
    with atomic_file(folder / ARRAYS) as temporary:
        save_file({name: np.ascontiguousarray(value) for name, value in arrays.items()}, temporary)


def read_added(
    folder: Path, record: AdditionRecord, task: Task, settings: TaskSettings, label_vocabulary: tuple[str, ...]
) -> Added:
    """Read an addition; one that is not as it was written is refused."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    remedy = "open the run again, or restore the run folder from a copy"
    verify_files(folder, record.digests, what="addition to the bank", remedy=remedy)
    try:
        tables = {name: pl.read_parquet(folder / f"{name}.parquet", glob=False) for name in _TABLES}
        frame = pl.read_parquet(folder / INSTANCES, glob=False)
        arrays = load_file(folder / ARRAYS)
    except (OSError, pl.exceptions.PolarsError, SafetensorError) as error:
        raise PlmError(f"the addition '{folder}' cannot be read ({error})", remedy=remedy) from None
    cohort = Cohort(
        patients=tables["patients"],
        visits=tables["visits"],
        codes={kind: tables[TABLE_OF_KIND[kind]] for kind in KINDS},
        vocabulary=tables["vocabulary"],
        labels=pl.DataFrame(schema=LABEL_COLUMNS),
        source=record.source,
        unordered=record.unordered,
        known_hash=record.cohort,
    )
    labels = task.kind.from_lists(frame["label"].to_list(), len(label_vocabulary))
    instances = Instances(cohort, task, settings, frame.drop("label"), labels, label_vocabulary)
    return Added(record, instances, arrays)
