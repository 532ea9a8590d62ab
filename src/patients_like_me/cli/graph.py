"""The command of the room ``graph``: ``plm graph``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patients_like_me.cli.tasks import CohortFolder, Preset, TaskName, say_unused, task_settings_from

if TYPE_CHECKING:
    from rich.console import Console

    from patients_like_me.graph import GraphSettings, PatientGraph
    from patients_like_me.graph.edge_weights import EdgeWeightAnalysis
    from patients_like_me.graph.statistics import GraphStatistics
    from patients_like_me.tasks.diagnosis_sets import DiagnosisSets
    from patients_like_me.tasks.task import TaskSettings


GraphChanges = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="A setting, as NAME=VALUE, the same as for plm train: graph.tau=5, task.inputs=known; repeatable."
    ),
]


def graph(
    cohort: CohortFolder,
    task: TaskName,
    preset: Preset = "quick",
    changes: GraphChanges = None,
    tau: Annotated[int | None, typer.Option(help="Short for --set graph.tau=NUMBER.")] = None,
    max_neighbors: Annotated[int | None, typer.Option(help="Short for --set graph.max_neighbors=NUMBER.")] = None,
    references: Annotated[str | None, typer.Option(help="Short for --set graph.references=NAME.")] = None,
    self_loop: Annotated[str | None, typer.Option(help="Short for --set graph.self_loop=NAME.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the graph; default COHORT/graphs/TASK.")] = None,
    analysis: Annotated[
        bool, typer.Option(help="Also compare the splits' edge weights and draw the tau curve.")
    ] = True,
    blocks: Annotated[
        int | None,
        typer.Option(help="Build on disk, this many rows at a time; run it again to continue after a stop."),
    ] = None,
    workers: Annotated[
        str, typer.Option(help="With --blocks: processes that compute them, or a cluster as dask://HOST:PORT.")
    ] = "1",
    threads: Annotated[int | None, typer.Option(help="Threads; default all cores.")] = None,
) -> None:
    """Build the patient graph of a task: who shares at least tau diagnoses with whom.

    Takes the preset and settings of [bold]plm train[/], so that the graph is the one of a training. Writes a graph
    folder with its figures, and prints degrees, components and edge weights per split.

    Example:
        plm graph cohort --task readmission --preset paper --set graph.max_neighbors=32

    """
    from rich.console import Console

    from patients_like_me.errors import PlmError
    from patients_like_me.files import write_json
    from patients_like_me.graph.coverage import coverage_notes, hub_notes
    from patients_like_me.graph.edge_weights import analyze_edge_weights
    from patients_like_me.graph.figures import draw_edge_weights, draw_graph, draw_tau_curve
    from patients_like_me.workers import read_workers

    # Folders and names are the user's: nothing in them is markup.
    console = Console(markup=False)
    options, others = task_settings_from(task, preset, changes)
    short = {"tau": tau, "max_neighbors": max_neighbors, "references": references, "self_loop": self_loop}
    settings = graph_settings_from(preset, others, short)
    folder = out or cohort / "graphs" / task
    if folder.exists() and not (folder / "graph.json").is_file():
        raise PlmError(f"'{folder}' exists and is not a graph", remedy="choose another --out")
    chosen_workers = read_workers(workers)
    if blocks is None and chosen_workers != 1:
        raise PlmError("--workers computes the blocks of a graph, and there are none", remedy="give --blocks 8192 too")
    sets = diagnosis_sets_of(cohort, task, options)
    built = _build(sets, settings, folder, blocks, chosen_workers, threads)
    statistics = built.statistics()
    _print_statistics(console, task, settings, statistics)
    for note in [*coverage_notes(built), *hub_notes(built)]:
        console.print(f"Warning: {note}.", markup=False)
    draw_graph(statistics, folder / "graph.png")
    write_json(folder / "statistics.json", statistics.as_json())
    if analysis:
        found = analyze_edge_weights(sets, threads=threads)
        _print_analysis(console, found, settings.tau)
        draw_edge_weights(found, folder / "edge_weights.png")
        draw_tau_curve(found, folder / "tau_curve.png", tau=settings.tau)
        write_json(folder / "edge_weights.json", found.as_json())
    console.print(f"Graph: {folder}")


def graph_settings_from(preset: str, changes: dict[str, Any], short: Mapping[str, Any] | None = None) -> GraphSettings:
    """Return the settings of the patient graph under a preset, with those of ``changes`` and ``short`` options.

    Settings of other things in ``changes`` are named as unused.
    """
    from patients_like_me.graph import GraphSettings
    from patients_like_me.settings import checked, merged, preset_values

    others = dict(changes)
    values = merged(preset_values(preset)["training"].get("graph", {}), others.pop("graph", {}))
    say_unused(others)
    given = {name: value for name, value in (short or {}).items() if value is not None}
    return checked(GraphSettings, **values | given)


def diagnosis_sets_of(cohort: Path, task: str, options: TaskSettings) -> DiagnosisSets:
    """Return the diagnosis sets of a task's instances over a cohort folder."""
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.tasks.instances import build_instances
    from patients_like_me.tasks.registry import find_task

    loaded = Cohort.load(cohort)
    return build_instances(loaded, find_task(task, loaded), options).diagnosis_sets


def _build(
    sets: DiagnosisSets,
    settings: GraphSettings,
    folder: Path,
    blocks: int | None,
    workers: int | str,
    threads: int | None,
) -> PatientGraph:
    import logging

    from rich.console import Console
    from rich.logging import RichHandler

    from patients_like_me.graph import build_graph

    logger = logging.getLogger("patients_like_me")
    console = Console(stderr=True, markup=False)
    handler = RichHandler(console=console, show_path=False, show_time=False, show_level=False)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with console.status("building the graph") as status:
            if blocks is None:
                built = build_graph(sets, settings, threads=threads)
                built.save(folder, replace=True)
                return built
            from patients_like_me.graph.block_workers import build_graph_in_blocks

            return build_graph_in_blocks(
                sets,
                settings,
                folder,
                rows_per_block=blocks,
                workers=workers,
                threads=threads,
                progress=lambda done, of: status.update(f"building the graph: block {done:,} of {of:,}"),
                replace=True,
            )
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _print_statistics(console: Console, task: str, settings: GraphSettings, statistics: GraphStatistics) -> None:
    from rich.table import Table

    kept = "all neighbours" if settings.max_neighbors is None else f"strongest {settings.max_neighbors}"
    title = f"Patient graph of {task}: tau {settings.tau}, {kept}, references {settings.references}"
    table = Table("", title=title)
    for split in statistics.splits:
        table.add_column(split.name, justify="right")
    lines = {
        "instances": [f"{split.nodes:,}" for split in statistics.splits],
        "patients": [f"{split.patients:,}" for split in statistics.splits],
        "edges": [f"{split.edges:,}" for split in statistics.splits],
        "average degree": [f"{split.average_degree:,.1f}" for split in statistics.splits],
        "median degree": [f"{split.median_degree:,.0f}" for split in statistics.splits],
        "largest degree": [f"{split.largest_degree:,}" for split in statistics.splits],
        "isolated": [f"{split.isolated_share:.1%}" for split in statistics.splits],
        "components": [f"{split.components:,}" for split in statistics.splits],
        "largest component": [f"{split.largest_component:,}" for split in statistics.splits],
    }
    for name, values in lines.items():
        table.add_row(name, *values)
    console.print(table)


def _print_analysis(console: Console, analysis: EdgeWeightAnalysis, tau: int) -> None:
    from rich.table import Table

    from patients_like_me.graph.edge_weights import BINS

    table = Table("shared diagnoses", title="Edge weights at tau 1, all pairs")
    for group in analysis.groups:
        table.add_column(group.name, justify="right")
    for number, name in enumerate(BINS):
        table.add_row(name, *(f"{group.shares[number]:.2%}" for group in analysis.groups))
    table.add_section()
    table.add_row("edges at tau 1", *(f"{group.edges_at(1):,}" for group in analysis.groups))
    table.add_row(f"edges at tau {tau}", *(f"{group.edges_at(tau):,}" for group in analysis.groups))
    console.print(table)
    if analysis.comparison is None:
        console.print("Training and test graph are not compared: one of them is missing or has no edges.")
        return
    found = analysis.comparison
    console.print(
        f"Training against test: Jensen-Shannon divergence {found.jensen_shannon_divergence:.5f} bits "
        f"(its root, the distance: {found.jensen_shannon_distance:.4f}), "
        f"total variation {found.total_variation:.4f}, "
        f"G-test {found.g_statistic:,.1f} with {found.degrees_of_freedom} degrees of freedom, "
        f"p {found.p_value:.3g} (pairs are not independent: read the distances), Cramér's V {found.cramers_v:.4f}."
    )
