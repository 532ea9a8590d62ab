"""What a reader of another package returns is refused where it is wrong, with the reader and the column named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from patients_like_me.errors import PlmError
from patients_like_me.parts import LeftOutWarning
from patients_like_me.records import registry
from patients_like_me.records.cohort import TIME
from patients_like_me.records.registry import Reader, SourceRecords, all_readers, read_source, readers_that_fit
from patients_like_me.records.source_files import SourceFolder


@pytest.fixture
def source(tmp_path: Path) -> SourceFolder:
    (tmp_path / "visits.csv").write_text("subject_id,visit_id\na,1\na,2\nb,3\n")
    return SourceFolder((tmp_path,), "a source")


def right(source: SourceFolder) -> SourceRecords:
    table = source.open("visits", {"subject_id": pl.String, "visit_id": pl.String})
    rows = table.collect()
    return SourceRecords(
        patients=rows.select(pl.col("subject_id").unique(maintain_order=True)).with_columns(
            pl.lit(None).alias("sex"), pl.lit(None, TIME).alias("death_time")
        ),
        visits=rows.with_columns(
            *(pl.lit(None, TIME).alias(name) for name in ("admission_time", "discharge_time")),
            pl.lit(50).alias("age"),
            pl.lit(False).alias("died"),
        ),
        visits_table=table,
        streams=[],
    )


def reader_of(change: Callable[[SourceRecords], Any]) -> Reader:
    return Reader("odd", "the odd source", lambda source: True, lambda source, settings: change(right(source)))


def changed(table: str, **columns: pl.Expr) -> Callable[[SourceRecords], SourceRecords]:
    return lambda found: replace(found, **{table: getattr(found, table).with_columns(**columns)})


def first(value: Any, column: str) -> pl.Expr:
    return pl.when(pl.int_range(pl.len()) == 0).then(value).otherwise(column)


LABELS = pl.DataFrame({"visit_id": ["1"], "task": ["t"], "value": [None]}, schema_overrides={"value": pl.String})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: None, "a NoneType, not SourceRecords"),
        (lambda found: {}["x"], ""),
        (lambda found: replace(found, streams=None), "'streams' that are not a list of EventStream"),
        (lambda found: replace(found, visits=found.visits.lazy()), "'visits' as a LazyFrame"),
        (lambda found: replace(found, visits=found.visits.drop("age")), "'visits' without the column 'age'"),
        (lambda found: replace(found, names=pl.DataFrame({"a": [1]})), "'names' without the column 'kind'"),
        (lambda found: replace(found, labels=pl.DataFrame({"a": [1]})), "'labels' without the column 'visit_id'"),
        (lambda found: replace(found, labels=LABELS), "'labels' with 1 rows without 'value'"),
        (changed("visits", age=pl.lit(-5)), "3 visits whose 'age' is not between 0 and 130"),
        (changed("visits", age=pl.lit(70_000)), "3 visits whose 'age' is not between"),
        (changed("visits", age=pl.lit(float("nan"))), "'age' of 'visits' as Float64, where whole numbers are expected"),
        (changed("visits", admission_time=pl.lit("2024-01-01")), "'admission_time' of 'visits' as String"),
        (changed("visits", admission_time=pl.lit(0).cast(pl.Datetime("us", "UTC"))), "without a time zone"),
        (changed("visits", visit_id=first(None, "visit_id")), "'visits' with 1 rows without 'visit_id'"),
        (changed("visits", subject_id=first(None, "subject_id")), "'visits' with 1 rows without 'subject_id'"),
        (changed("visits", subject_id=pl.lit(1)), "'subject_id' as String in 'patients' and as Int32 in 'visits'"),
        (changed("visits", died=pl.lit(None, pl.Boolean)), "'visits' with 3 rows without 'died'"),
    ],
)
def test_what_a_reader_must_not_return_is_named(
    change: Callable[[SourceRecords], Any], words: str, source: SourceFolder
) -> None:
    reader = reader_of(change)
    sentence = f"the reader 'odd' returned .*{words}" if words else "the reader 'odd' failed .KeyError: 'x'."
    with pytest.raises(PlmError, match=sentence):
        read_source(reader, source, reader.settings())


def test_what_is_right_is_handed_on(source: SourceFolder) -> None:
    reader = reader_of(lambda found: found)
    assert read_source(reader, source, reader.settings()).visits.height == 3


def test_a_reader_that_cannot_look_at_a_folder_does_not_stop_the_others(
    source: SourceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = Reader("odd", "the odd source", lambda source: {}["x"], lambda source, settings: right(source))
    known = {**all_readers(), "odd": odd}
    monkeypatch.setattr(registry, "all_readers", lambda: known)
    with pytest.warns(LeftOutWarning, match="the reader 'odd' cannot tell .* .KeyError: 'x'."):
        assert "odd" not in [reader.name for reader in readers_that_fit(source)]
