"""Commands of the room ``tasks``: ``plm task``, ``plm audit`` and ``plm show``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from patients_like_me.tasks.task import TaskSettings

task_app = typer.Typer(no_args_is_help=True, help="The prediction tasks: label, allowed inputs and metrics.")

CohortFolder = Annotated[Path, typer.Argument(help="A cohort folder that plm prepare wrote.")]
TaskName = Annotated[
    str, typer.Option("--task", help="A task of [bold]plm task list[/], or one of the cohort's labels table.")
]
Preset = Annotated[
    str,
    typer.Option(help="[bold]paper[/], [bold]clinical[/], [bold]recommended[/] or [bold]quick[/] (for a CPU)."),
]
TaskChanges = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting, as NAME=VALUE, the same as for plm train: task.inputs=known; repeatable."),
]


def task_settings_from(task: str, preset: str, words: list[str] | None) -> tuple[TaskSettings, dict[str, Any]]:
    """Return the settings of a task under a preset with the changes of ``--set``, and the changes of other settings.

    The same words as for ``plm train`` are understood, so that one audits what one trains.
    """
    from patients_like_me.settings import changes_from_words
    from patients_like_me.tasks.registry import task_settings_of

    changes = changes_from_words(words or [])
    return task_settings_of(task, preset, **changes.pop("task", {})), changes


def say_unused(changes: dict[str, Any]) -> None:
    """Name the settings that do not change what a command shows."""
    for name in changes:
        typer.echo(f"plm: the setting '{name}' changes nothing here", err=True)


@task_app.command("list")
def list_tasks() -> None:
    """List the tasks that every cohort can have."""
    from rich.console import Console
    from rich.table import Table

    from patients_like_me.tasks.registry import all_tasks

    table = Table("task", "question", "metrics")
    for task in all_tasks().values():
        table.add_row(task.name, task.title, ", ".join(task.metrics))
    Console().print(table)


@task_app.command("show")
def show_task(
    name: Annotated[str, typer.Argument(help="The task's name.")],
    cohort: Annotated[Path | None, typer.Option(help="A cohort, for the tasks of its labels table.")] = None,
    preset: Preset = "quick",
    changes: TaskChanges = None,
) -> None:
    """Show a task's label, its allowed inputs, its metrics and its settings.

    Examples:
        plm task show drug_recommendation

        plm task show readmission --set task.window_days=30

    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from patients_like_me.plain_text import printable_lines
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.tasks.registry import find_task

    task = find_task(name, None if cohort is None else Cohort.load(cohort))
    settings, others = task_settings_from(name, preset, changes)
    say_unused(others)
    table = Table(show_header=False)
    for title, content in task.under(settings).describe().items():
        table.add_row(title, escape(printable_lines(content)))
    Console().print(table)


def audit(
    cohort: CohortFolder,
    task: TaskName,
    preset: Preset = "quick",
    changes: TaskChanges = None,
    page: Annotated[Path | None, typer.Option(help="Where to write the page; default COHORT/audit/TASK.html.")] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="A run: its bank and references, or the paths of its patient graph, are checked too."),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            help="Where the source of the cohort is: the cohort is prepared again from it and compared; repeatable."
        ),
    ] = None,
) -> None:
    """Check on the actual data that no answer, later visit or other split reaches an input.

    Takes the preset and settings of [bold]plm train[/], so that what is audited is what is trained. Exits with code 1
    if a leak is found, and writes a page to read or to attach.

    Examples:
        plm audit cohort --task drug_recommendation --preset clinical

        plm audit cohort --task readmission --set task.window_days=30

        plm audit cohort --task drug_recommendation --run runs/references

        plm audit cohort --task readmission --source ~/physionet/mimic-iv-3.1

    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from patients_like_me.files import atomic_file, write_json
    from patients_like_me.plain_text import printable, shown_count
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.tasks.audit import audit as audit_task
    from patients_like_me.tasks.audit_page import audit_page, rate_columns, shown_rates
    from patients_like_me.tasks.registry import find_task

    loaded = Cohort.load(cohort)
    settings, others = task_settings_from(task, preset, changes)
    say_unused(others)
    # Names of tasks, classes and folders are the user's: nothing in them is markup.
    console = Console(markup=False)
    with Console(stderr=True).status("auditing") as status:
        result = audit_task(loaded, find_task(task, loaded), settings)
        if source:
            from patients_like_me.cli.progress import shown_in
            from patients_like_me.tasks.audit_provenance import as_its_source_says

            result.findings.append(as_its_source_says(loaded, source, shown_in(status)))
        if run is not None:
            from patients_like_me.explanation.reference_scene import audit_of_references

            findings, notes = audit_of_references(run, cohort)
            result.findings += findings
            result.notes = [*notes, *result.notes]
    colours = {"passed": "green", "leak": "bold red", "warning": "yellow"}
    table = Table("check", "verdict", "looked at", "found", title=printable(f"Audit of {task}: {result.title}"))
    for finding in result.findings:
        verdict = Text(finding.verdict, style=colours.get(finding.verdict, "dim"))
        table.add_row(finding.check, verdict, shown_count(finding.looked_at), shown_count(finding.found))
    console.print(table)
    for finding in result.findings:
        if finding.verdict in ("leak", "warning", "cannot be checked"):
            console.print(f"{finding.verdict}: {finding.check}: {printable(finding.meaning)}", soft_wrap=True)
    columns = rate_columns(result)
    rates = Table(*(name.replace("shown", "label rate") for name in columns), title="Label rates")
    for row in shown_rates(result):
        rates.add_row(*row)
    if result.label_rates:
        console.print(rates)
    for note in result.notes:
        console.print(f"Note: {printable(note)}", soft_wrap=True)
    path = page or cohort / "audit" / f"{task}.html"
    with atomic_file(path) as temporary:
        temporary.write_text(audit_page(result, loaded), encoding="utf-8")
    write_json(path.with_suffix(".json"), result.as_json())
    console.print(f"Page: {path}")
    if result.leaks:
        console.print(f"{len(result.leaks)} checks found a leak.", style="bold red")
        raise typer.Exit(1)


def show(
    cohort: CohortFolder,
    task: TaskName,
    instance: Annotated[str | None, typer.Option(help="The visit id; default: the first one with a history.")] = None,
    preset: Preset = "quick",
    changes: TaskChanges = None,
    budget: Annotated[int, typer.Option(help="Tokens that the prompt may have.")] = 512,
) -> None:
    """Print one instance as a model sees it: its prompt, what was cut, and its label.

    This prints a patient's record on your screen; nothing is written.
    """
    from patients_like_me.errors import PlmError
    from patients_like_me.plain_text import printable_lines
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.tasks.instances import build_instances
    from patients_like_me.tasks.prompts import write_prompts
    from patients_like_me.tasks.registry import find_task
    from patients_like_me.tasks.tokens import packaged_token_counter

    loaded = Cohort.load(cohort)
    settings, others = task_settings_from(task, preset, changes)
    say_unused(others)
    instances = build_instances(loaded, find_task(task, loaded), settings)
    ids = instances.instance_ids
    if instance is None:
        frame = instances.frame
        row = int((frame["visit"] > frame["first_visit"]).arg_max() or 0)
    elif instance in ids:
        row = ids.index(instance)
    else:
        raise PlmError(f"no instance of the task '{task}' has that id", remedy="give the id of a labelled visit")
    prompts = write_prompts(instances, packaged_token_counter(), budget=budget, rows=[row])
    typer.echo(printable_lines(prompts.texts[0]))
    cut = f"{prompts.visits_cut[0]} visits and {prompts.codes_cut[0]} codes cut"
    typer.echo(f"\n[{prompts.tokens[0]} of {budget} tokens; {cut}]")
    label = instances.task.kind.label_in_words(instances.labels[row], instances.label_vocabulary)
    typer.echo(printable_lines(f"[split {instances.splits[row]}; label: {label}]"))
