"""The command ``plm faithfulness``: does a run's prediction really lean on the references it shows?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.status import Status

    from patients_like_me.explanation.agreement import Agreement
    from patients_like_me.explanation.faithfulness import Faithfulness
    from patients_like_me.explanation.masking_experiment import Masking
    from patients_like_me.runs.run import Run
    from patients_like_me.tasks.task import Split


def faithfulness(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    other_seeds: Annotated[
        list[Path] | None, typer.Argument(help="Runs that differ only in their seed: how stable are the references?")
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Methods with commas between; [bold]fast[/] and [bold]all[/] stand for groups.")
    ] = "fast",
    k: Annotated[str, typer.Option("--k", help="How many references are removed: 1..10, or 1,3,10.")] = "1..10",
    split: Annotated[str, typer.Option(help="[bold]test[/] or [bold]validation[/].")] = "test",
    label: Annotated[str | None, typer.Option(help="Explain this class or code, such as A10A, for everyone.")] = None,
    references: Annotated[
        str, typer.Option(help="Which are removed: [bold]shown[/] (the ten of the page) or [bold]all[/] neighbours.")
    ] = "shown",
    graph_wide: Annotated[
        bool, typer.Option("--graph-wide", help="Remove those of all instances at once; default: one at a time.")
    ] = False,
    sample: Annotated[int, typer.Option(help="Instances that slow methods see.", min=2)] = 100,
    everyone: Annotated[bool, typer.Option("--all", help="Let slow methods see all instances.")] = False,
    replicates: Annotated[int, typer.Option(help="Resamples of patients behind every interval.", min=1)] = 500,
    seed: Annotated[int, typer.Option(help="Decides samples, resamples and random removals.", min=0)] = 0,
    cohort: Annotated[Path | None, typer.Option(help="Where the cohort is now, if it has moved.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write; default RUN/faithfulness.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads; default all cores.", min=1)] = None,
    workers: Annotated[
        str | None, typer.Option(help="Who computes importances and removals: processes, or dask://HOST:PORT.")
    ] = None,
) -> None:
    """Test whether the references matter: remove the first k of each method and predict again.

    Writes the masking table and figure, all attributions as Parquet, the agreement between methods, and the check
    that importances change when the weights are random.

    Examples:
        plm faithfulness runs/vem

        plm faithfulness runs/references --k 1,3,10

        plm faithfulness runs/seed0 runs/seed1 runs/seed2 --methods fast,gnn_explainer --k 1,3,10

    """
    import shutil

    import torch
    from rich.console import Console

    from patients_like_me.cli.progress import shown_in
    from patients_like_me.errors import PlmError
    from patients_like_me.explanation.faithfulness import assess_faithfulness
    from patients_like_me.explanation.masking_experiment import Masking
    from patients_like_me.explanation.targets import output_of_label
    from patients_like_me.runs.run import load_run
    from patients_like_me.workers import read_workers

    if split not in ("validation", "test"):
        raise PlmError(f"the split '{split}' is not explained", remedy="choose validation or test")
    if references not in ("shown", "all"):
        raise PlmError(f"the references '{references}' cannot be removed", remedy="choose shown or all")
    if threads is not None:
        torch.set_num_threads(threads)
    ks = numbers_of_references(k)
    folder = out or run / "faithfulness"
    shared = None if workers is None else (Path(f"{folder}.blocks"), read_workers(workers))
    with Console(stderr=True).status("opening the runs") as status:
        opened = [load_run(folder, cohort) for folder in (run, *(other_seeds or []))]
        if opened[0].capabilities.references and not opened[0].has_patient_graph:
            if other_seeds or graph_wide or label is not None or methods != "fast" or references != "shown" or workers:
                raise PlmError(
                    "the references of this run are removed for one instance and all its outputs at a time, in the "
                    "order of their shares",
                    remedy="leave out other runs, --methods, --references, --graph-wide, --label and --workers",
                )
            masking = Masking(ks, replicates=replicates, seed=seed)
            _assess_shares(opened[0], masking, split, folder, status)
            return
        found = assess_faithfulness(
            opened,
            Masking(
                ks,
                references="all" if references == "all" else "shown",
                graph_wide=graph_wide,
                replicates=replicates,
                seed=seed,
            ),
            methods=[name.strip() for name in methods.split(",") if name.strip()],
            split="validation" if split == "validation" else "test",
            output=None if label is None else output_of_label(label, opened[0].label_vocabulary),
            sample=None if everyone else sample,
            threads=threads,
            shared=shared,
            report=shown_in(status),
        )
        status.update("writing tables and figures")
        folder = found.write(folder)
        if shared is not None:
            shutil.rmtree(shared[0], ignore_errors=True)
    console = Console(highlight=False, markup=False)
    _print_masking(console, found)
    _print_agreements(console, "Agreement between methods", found.agreement)
    _print_agreements(console, "Importance against networks with random weights (low is right)", found.randomisation)
    _print_agreements(console, "Importance between seeds (high is right)", found.stability)
    for sentence in found.verdict():
        console.print(sentence, markup=False, soft_wrap=True)
    console.print(f"Tables, figure and attributions: {folder}", markup=False, soft_wrap=True)


def _assess_shares(run: Run, masking: Masking, split: str, out: Path, status: Status) -> None:
    """Remove references by their shares in the predictions: for a run whose references are not those of a graph."""
    from rich.console import Console

    from patients_like_me.cli.progress import shown_in
    from patients_like_me.explanation.faithfulness import PAPER_K
    from patients_like_me.explanation.reference_faithfulness import assess_references

    wanted: Split = "validation" if split == "validation" else "test"
    found = assess_references(run, masking, split=wanted, report=shown_in(status))
    folder = found.write(out)
    status.stop()
    console = Console(highlight=False, markup=False)
    console.print(f"{found.instances:,} instances of {found.patients:,} patients have references")
    for removed in found.removed:
        console.print(removed.sentence, soft_wrap=True)
    console.print(found.verdict(PAPER_K), soft_wrap=True)
    console.print(f"Numbers: {folder}", soft_wrap=True)


def numbers_of_references(words: str) -> list[int]:
    """Read numbers with commas between, or a range.

    >>> numbers_of_references("1..4"), numbers_of_references("1,3,10")
    ([1, 2, 3, 4], [1, 3, 10])
    """
    from patients_like_me.errors import PlmError

    try:
        if ".." in words:
            first, _, last = words.partition("..")
            found = list(range(int(first), int(last) + 1))
        else:
            found = sorted({int(word) for word in words.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1 or found[-1] > 1000:
        raise PlmError(f"--k {words} does not list numbers of references", remedy="give 1..10 or 1,3,10")
    return found


def _print_masking(console: Console, found: Faithfulness) -> None:
    from rich.table import Table
    from rich.text import Text

    for result in found.masking:
        k = 3 if 3 in result.ks else result.ks[-1]
        which = "shown references" if result.references == "shown" else "neighbours"
        how = ", graph-wide" if result.graph_wide else ""
        title = f"{found.task}, {result.group} ({result.instances:,}): first {k} {which} removed{how}"
        # One row for each number: side by side, the measures of a task are wider than a terminal.
        console.print(title, style="italic", soft_wrap=True)
        table = Table()
        table.add_column("method", overflow="fold")
        for column in ("change", "95 % interval", "p"):
            table.add_column(column, justify="right", no_wrap=True)
        for measure in result.measures:
            table.add_row(Text(measure.replace("_", " "), style="bold"), "", "", "")
            for method in result.methods:
                change = result.change(method, k, measure)
                value = "not available" if change.value is None else f"{change.value:+.4f}"
                spread = f"{change.interval.low:+.4f} to {change.interval.high:+.4f}" if change.interval else ""
                p_value = change.against_random.p_value if change.against_random else None
                table.add_row(f"  {method}", value, spread, "" if p_value is None else f"{p_value:.3g}")
            table.add_section()
        console.print(table)
        console.print(
            f"{result.with_references:,} of {result.instances:,} instances have references; "
            f"{result.fewer[k]:,} of them fewer than {k}, which lose all they have. p: against random removal.",
            soft_wrap=True,
        )


def _print_agreements(console: Console, title: str, found: Sequence[Agreement]) -> None:
    from rich.table import Table

    if not found:
        return
    table = Table(title=title)
    # Names are folded where they do not fit, never cut; numbers and their titles stay whole.
    for column in ("first", "second"):
        table.add_column(column, overflow="fold")
    for column in ("Kendall", "Spearman", "top 3\nshared", "by\nchance", "targets"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in found:
        numbers = (each.kendall, each.spearman, each.top_overlap, each.chance)
        shown = ["–" if number is None else f"{number:.3f}" for number in numbers]
        # Words, so that a name that does not fit is broken between them.
        names = (name.replace("_", " ") for name in (each.first, each.second))
        table.add_row(*names, *shown, f"{each.targets:,}")
    console.print(table)
