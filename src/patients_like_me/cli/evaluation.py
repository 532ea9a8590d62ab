"""Commands of the room ``evaluation``: ``plm evaluate``, ``plm compare`` and ``plm export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from patients_like_me.evaluation.compare import Comparison
    from patients_like_me.evaluation.evaluate import Evaluation

RunFolder = Annotated[Path, typer.Argument(help="A finished run folder.")]
Replicates = Annotated[int, typer.Option(help="Resamples of patients behind every interval.", min=1)]
ResampleSeed = Annotated[int, typer.Option("--seed", help="Seed of the resamples.", min=0)]

#: Columns of the terminal that names of strata get at least; longer ones are folded.
_NAMES: Final = 20


def evaluate(
    run: RunFolder,
    replicates: Replicates = 1000,
    seed: ResampleSeed = 0,
    cohort: Annotated[Path | None, typer.Option(help="Where the run's cohort is now, if it has moved.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write; default RUN/evaluation.")] = None,
    workers: Annotated[
        str | None, typer.Option(help="Who resamples: a number of processes, or a cluster as dask://HOST:PORT.")
    ] = None,
) -> None:
    """Evaluate a run on its test patients: metrics with intervals, calibration, strata, figures and tables.

    Intervals come from a bootstrap over patients. Thresholds are the paper's 0.2 and one tuned on validation. Strata
    with fewer than 11 patients or instances are hidden.

    Example:
        plm evaluate runs/vem

    """
    import shutil

    from rich.console import Console

    from patients_like_me.cli.progress import shown_in
    from patients_like_me.evaluation.evaluate import evaluate as evaluate_run
    from patients_like_me.evaluation.tables import shown_value
    from patients_like_me.evaluation.writing import write_evaluation
    from patients_like_me.workers import read_workers

    shared = None if workers is None else (Path(f"{out or run / 'evaluation'}.blocks"), read_workers(workers))
    with Console(stderr=True).status("reading the run") as status:
        found = evaluate_run(
            run, cohort=cohort, replicates=replicates, seed=seed, shared=shared, report=shown_in(status)
        )
        status.update("writing tables and figures")
        folder = write_evaluation(found, out)
        if shared is not None:
            shutil.rmtree(shared[0], ignore_errors=True)
    console = Console(highlight=False)
    _print_measures(console, found)
    if found.calibration:
        was = ", ".join(f"{each.title} {shown_value(each.value)}" for each in found.before_calibration)
        console.print(f"Recalibrated: {found.calibration}. Before: {was}", markup=False)
    _print_strata(console, found)
    for note in found.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    console.print(f"Tables and figures: {folder}", markup=False, soft_wrap=True)


def calibrate(
    run: RunFolder,
    method: Annotated[
        str,
        typer.Option(help="[bold]logistic[/] (slope and intercept), [bold]isotonic[/], or [bold]none[/] to undo it."),
    ] = "logistic",
    cohort: Annotated[Path | None, typer.Option(help="Where the run's cohort is now, if it has moved.")] = None,
) -> None:
    """Recalibrate the probabilities of a run on its validation patients; test patients have no part in it.

    The map is written into the run and used by predict, explain, evaluate, report and export alike. plm train does
    this by default, but with the preset paper.

    Example:
        plm calibrate runs/vem --method isotonic

    """
    from rich.console import Console
    from rich.table import Table

    from patients_like_me.evaluation.evaluate import CALIBRATION_METRICS
    from patients_like_me.evaluation.measures import measures_of
    from patients_like_me.evaluation.predictions import read_predictions
    from patients_like_me.evaluation.recalibration import calibrate_run
    from patients_like_me.evaluation.tables import shown_value
    from patients_like_me.runs.calibration import wanted_method

    done = calibrate_run(run, wanted_method(method), cohort=cohort)
    table = Table("metric", title="Test patients, before and after", title_justify="left")
    before, after = (read_predictions(done, calibrated=used).of_split("test") for used in (False, True))
    for column in ("before", "after"):
        table.add_column(column, justify="right")
    pairs = zip(
        measures_of(before, only=CALIBRATION_METRICS), measures_of(after, only=CALIBRATION_METRICS), strict=True
    )
    for first, second in pairs:
        table.add_row(first.title, shown_value(first.value), shown_value(second.value))
    console = Console(highlight=False)
    if len(after):
        console.print(table)
    words = "none" if done.record.calibration is None else done.record.calibration.in_words()
    console.print(f"Calibration: {words}. Run: {run}", markup=False, soft_wrap=True)


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Finished run folders; differences are against the first.")],
    out: Annotated[Path | None, typer.Option(help="A new folder for JSON, CSV, LaTeX and a figure.")] = None,
    across_splits: Annotated[
        bool, typer.Option("--across-splits", help="Average over runs with several task.split_seed, for small cohorts.")
    ] = False,
    replicates: Replicates = 1000,
    seed: ResampleSeed = 0,
) -> None:
    """Put runs side by side, with intervals of their differences over the same resamples of patients.

    Runs that differ only in their seed become one row: mean and standard deviation over the seeds. Runs of different
    cohorts, tasks, task settings or splits are refused. With --across-splits runs on several splits of a cohort
    become one row: a metric is computed within each split and averaged.

    Example:
        plm compare runs/lm_only runs/vem --out comparison
        plm compare runs/vem-split* runs/logistic-split* --across-splits

    """
    from rich.console import Console

    from patients_like_me.cli.progress import shown_in
    from patients_like_me.errors import PlmError
    from patients_like_me.evaluation.compare import compare as compare_runs
    from patients_like_me.evaluation.comparison_files import write_comparison

    if out is not None and out.exists():
        raise PlmError(f"'{out}' exists already", remedy="choose another --out or remove it")
    with Console(stderr=True).status("reading the runs") as status:
        found = compare_runs(
            runs, across_splits=across_splits, replicates=replicates, seed=seed, report=shown_in(status)
        )
        if out is not None:
            write_comparison(found, out)
    console = Console(highlight=False)
    _print_comparison(console, found)
    if out is not None:
        console.print(f"Tables and figure: {out}", markup=False, soft_wrap=True)


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")],
) -> None:
    """Write labels and predictions of validation and test as MEDS-style tables.

    They hold patients' data: protect them like the cohort.

    Example:
        plm export runs/vem --out meds

    """
    from patients_like_me.evaluation.meds_export import export_run

    made = export_run(run, out)
    for name, table in made.tables.items():
        typer.echo(f"{name}.parquet: {table.height:,} rows ({', '.join(table.columns)})")
    if missing := made.about["instances_without_a_time"]:
        typer.echo(f"note: {missing:,} instances have no prediction time, because their visits have no dates")
    typer.echo(f"written to {out}")


def _print_measures(console: Console, found: Evaluation) -> None:
    from rich.table import Table

    from patients_like_me.evaluation.tables import caption_of, shown_interval, shown_threshold, shown_value

    table = Table(title=caption_of(found), title_justify="left")
    # A narrow terminal has no room for the definitions; they are in metrics.csv.
    with_words = console.width >= 120
    for column in ("metric", "threshold", "value", "95 % interval", *(["what it is"] if with_words else [])):
        numbers = column in ("value", "95 % interval")
        # The name of a metric stays in one piece; what is long beside it gives way.
        table.add_column(column, overflow="fold", justify="right" if numbers else "left", no_wrap=column == "metric")
    for each in found.measures:
        shown = [each.title, shown_threshold(each), shown_value(each.value), shown_interval(each.interval)]
        table.add_row(*shown, *([f"{each.definition}; {each.averaging}"] if with_words else []))
    console.print(table)
    for each in found.measures:
        if each.unavailable:
            console.print(f"{each.name} is not available: {each.unavailable}", markup=False, soft_wrap=True)


def _print_strata(console: Console, found: Evaluation) -> None:
    from patients_like_me.plain_text import FEW

    # A narrow terminal shows patients and the first metrics alone; everything is in subgroups.csv.
    counted = ("instances", "patients") if console.width >= 120 else ("patients",)
    metrics = found.by_stratum if console.width >= 120 else found.by_stratum[:3]
    while _width_without_names(console, found, metrics, counted) + _NAMES > console.width and len(metrics) > 1:
        metrics = metrics[:-1]
    table = _table_of_strata(
        found, metrics, counted, max(_NAMES, console.width - _width_without_names(console, found, metrics, counted))
    )
    if found.subgroups:
        console.print(table)
        if any(group.is_hidden for group in found.subgroups):
            console.print(
                f"hidden: {FEW} patients or instances, or the next smallest stratum, from which they would follow.",
                soft_wrap=True,
            )
        if left_out := len(found.by_stratum) - len(metrics):
            more = "1 more metric is" if left_out == 1 else f"{left_out} more metrics are"
            console.print(f"{more} in subgroups.csv: the terminal is too narrow.", soft_wrap=True)
    for dimension in found.dimensions:
        if dimension.unavailable:
            console.print(f"{dimension.title}: not available, {dimension.unavailable}", markup=False, soft_wrap=True)


def _width_without_names(console: Console, found: Evaluation, metrics: Sequence[str], counted: Sequence[str]) -> int:
    """Return how wide the table is beside the names of the strata; a table asked for its least width forgets titles."""
    table = _table_of_strata(found, metrics, counted, 1)
    return console.measure(table, options=console.options.update(max_width=10_000)).maximum - 1


def _table_of_strata(found: Evaluation, metrics: Sequence[str], counted: Sequence[str], room: int) -> Table:
    from rich.markup import escape
    from rich.table import Table

    from patients_like_me.evaluation.tables import shown_interval, shown_value
    from patients_like_me.plain_text import printable

    titles = {dimension.name: dimension.title for dimension in found.dimensions}
    names = {measure.metric: measure.title for measure in found.measures}
    table = Table(title="By stratum", title_justify="left")
    # Names of strata are folded where they do not fit, never cut; numbers stay whole, their titles are broken.
    written = [*titles.values(), *(f"  {printable(group.stratum)}" for group in found.subgroups)]
    longest = max(map(len, written), default=1)
    table.add_column("stratum", overflow="fold", width=min(longest, room))
    for column in (*counted, names[metrics[0]], "95 % interval", *(names[each] for each in metrics[1:])):
        table.add_column(column.replace(", ", ",\n"), justify="right", no_wrap=True)
    previous = ""
    for group in found.subgroups:
        if group.dimension != previous:
            table.add_section()
            table.add_row(f"[bold]{titles[group.dimension]}[/bold]")
        of_metric = {measure.metric: measure for measure in group.measures}
        shown = [of_metric[metric] for metric in metrics if metric in of_metric]
        cells = [
            "hidden" if (measure.unavailable or "").startswith("hidden") else shown_value(measure.value)
            for measure in shown
        ]
        cells[1:1] = [shown_interval(measure.interval) for measure in shown[:1]]
        people = {"instances": group.instances, "patients": group.patients}
        counts = ["hidden" if group.is_hidden else f"{people[each]:,}" for each in counted]
        table.add_row(f"  {escape(printable(group.stratum))}", *counts, *cells)
        previous = group.dimension
    return table


def _print_comparison(console: Console, found: Comparison) -> None:
    from rich.table import Table

    from patients_like_me.evaluation.comparison_files import comparison_caption, shown_cell, shown_difference
    from patients_like_me.evaluation.tables import shown_interval, shown_threshold

    table = Table(title=comparison_caption(found), title_justify="left")
    # Numbers stay in one piece; names are folded between words where a terminal is narrow.
    for column in ("metric", "run", "runs", "value", "95 % interval", f"difference from {found.rows[0].name}"):
        side: Literal["left", "right"] = "left" if column in ("metric", "run") else "right"
        table.add_column(column, overflow="fold", justify=side, no_wrap=column == "run")
    for at in range(len(found.names)):
        table.add_section()
        measure = found.rows[0].cells[at].measure
        # Each run has a tuned threshold of its own.
        threshold = shown_threshold(measure).partition(":")[0]
        name = f"{measure.title}, threshold {threshold}" if threshold else measure.title
        for number, row in enumerate(found.rows):
            cell = row.cells[at]
            table.add_row(
                name if number == 0 else "",
                row.name,
                str(len(row.folders)),
                shown_cell(cell),
                shown_interval(cell.interval),
                shown_difference(cell),
            )
    console.print(table)
