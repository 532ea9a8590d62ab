"""Commands of the room ``tasks``: ``plm task``, ``plm audit`` and ``plm show``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from patients_like_me.tasks.instances import Instances
    from patients_like_me.tasks.task import TaskSettings

task_app = typer.Typer(no_args_is_help=True, help="The prediction tasks: label, allowed inputs and metrics.")

CohortFolder = Annotated[Path, typer.Argument(help="A cohort folder that plm prepare wrote.")]
TaskName = Annotated[
    str, typer.Option("--task", help="readmission, length_of_stay, drug_recommendation, or an own one.")
]
Clock = Annotated[str, typer.Option(help="Readmission counts from **admission** (the paper) or **discharge**.")]
Window = Annotated[float, typer.Option(help="Days within which a next admission is a readmission.")]
Population = Annotated[str, typer.Option(help="Readmission: **with_successor** (the paper) or **discharged_alive**.")]
Inputs = Annotated[
    str, typer.Option(help="**retrospective** (the paper) or only what was **known** at prediction time.")
]
SplitMethod = Annotated[str, typer.Option(help="**seeded** exact shares, or **hash**: adding patients moves nobody.")]
SplitSeed = Annotated[int, typer.Option(help="Seed of the split by patient.")]


def settings_from(
    clock: str, window_days: float, population: str, inputs: str, split_method: str, split_seed: int
) -> TaskSettings:
    """Check the options of a command as task settings."""
    from patients_like_me.settings import checked
    from patients_like_me.tasks.task import TaskSettings

    return checked(
        TaskSettings,
        clock=clock,
        window_days=window_days,
        population=population,
        inputs=inputs,
        split_method=split_method,
        split_seed=split_seed,
    )


@task_app.command("list")
def list_tasks() -> None:
    """List the tasks that every cohort can have."""
    from rich.console import Console
    from rich.table import Table

    from patients_like_me.tasks.registry import TASKS

    table = Table("task", "question", "metrics")
    for task in TASKS.values():
        table.add_row(task.name, task.title, ", ".join(task.metrics))
    Console().print(table)


@task_app.command("show")
def show_task(
    name: Annotated[str, typer.Argument(help="The task's name.")],
    cohort: Annotated[Path | None, typer.Option(help="A cohort, for the tasks of its labels table.")] = None,
) -> None:
    """Show a task's label, its allowed inputs and its metrics.

    Example:
        plm task show drug_recommendation

    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from patients_like_me.records.cohort import Cohort
    from patients_like_me.tasks.registry import find_task

    task = find_task(name, None if cohort is None else Cohort.load(cohort))
    table = Table(show_header=False)
    for title, content in task.describe().items():
        table.add_row(title, escape(content))
    Console().print(table)


def audit(
    cohort: CohortFolder,
    task: TaskName,
    clock: Clock = "admission",
    window_days: Window = 15,
    population: Population = "with_successor",
    inputs: Inputs = "retrospective",
    split_method: SplitMethod = "seeded",
    split_seed: SplitSeed = 0,
    page: Annotated[Path | None, typer.Option(help="Where to write the page; default COHORT/audit/TASK.html.")] = None,
) -> None:
    """Prove on the actual data that no answer, later visit or other split reaches an input.

    Ends with exit code 1 if a leak is found, and writes a page to read or to attach.

    Example:
        plm audit cohort --task drug_recommendation --inputs known

    """
    from rich.console import Console
    from rich.table import Table

    from patients_like_me.files import atomic_file, write_json
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.tasks.audit import audit as audit_task
    from patients_like_me.tasks.audit_page import audit_page, shown_rate
    from patients_like_me.tasks.registry import find_task

    loaded = Cohort.load(cohort)
    settings = settings_from(clock, window_days, population, inputs, split_method, split_seed)
    console = Console()
    with Console(stderr=True).status("auditing"):
        result = audit_task(loaded, find_task(task, loaded), settings)
    colours = {"passed": "green", "leak": "bold red", "warning": "yellow", "not applicable": "dim"}
    table = Table("check", "verdict", "looked at", "found", title=f"Audit of {task}")
    for finding in result.findings:
        verdict = f"[{colours[finding.verdict]}]{finding.verdict}[/]"
        table.add_row(finding.check, verdict, f"{finding.looked_at:,}", f"{finding.found:,}")
    console.print(table)
    rates = Table("clock", "split", "instances", "patients", "label rate", title="Label rates")
    for row in result.label_rates:
        shown = shown_rate(row["label rate"], task)
        rates.add_row(row["clock"], row["split"], f"{row['instances']:,}", f"{row['patients']:,}", shown)
    console.print(rates)
    for note in result.notes:
        console.print(f"Note: {note}")
    path = page or cohort / "audit" / f"{task}.html"
    with atomic_file(path) as temporary:
        temporary.write_text(audit_page(result, loaded), encoding="utf-8")
    write_json(path.with_suffix(".json"), result.as_json())
    console.print(f"Page: {path}")
    if result.leaks:
        console.print(f"[bold red]{len(result.leaks)} checks found a leak.[/]")
        raise typer.Exit(1)


def show(
    cohort: CohortFolder,
    task: TaskName,
    instance: Annotated[str | None, typer.Option(help="The visit id; default: the first one with a history.")] = None,
    clock: Clock = "admission",
    window_days: Window = 15,
    population: Population = "with_successor",
    inputs: Inputs = "retrospective",
    split_method: SplitMethod = "seeded",
    split_seed: SplitSeed = 0,
    budget: Annotated[int, typer.Option(help="Tokens that the prompt may have.")] = 512,
) -> None:
    """Print one instance as a model sees it: its prompt, what was cut, and its label.

    This prints a patient's record on your screen; nothing is written.
    """
    from patients_like_me.errors import PlmError
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.tasks.instances import build_instances
    from patients_like_me.tasks.prompts import write_prompts
    from patients_like_me.tasks.registry import find_task
    from patients_like_me.tasks.tokens import packaged_token_counter

    loaded = Cohort.load(cohort)
    settings = settings_from(clock, window_days, population, inputs, split_method, split_seed)
    instances = build_instances(loaded, find_task(task, loaded), settings)
    ids = instances.instance_ids
    if instance is None:
        frame = instances.frame
        row = int((frame["visit"] > frame["first_visit"]).arg_max() or 0)
    elif instance in ids:
        row = ids.index(instance)
    else:
        raise PlmError(f"no instance '{instance}' of the task '{task}'", remedy="give the id of a labelled visit")
    prompts = write_prompts(instances, packaged_token_counter(), budget=budget, rows=[row])
    typer.echo(prompts.texts[0])
    cut = f"{prompts.visits_cut[0]} visits and {prompts.codes_cut[0]} codes cut"
    typer.echo(f"\n[{prompts.tokens[0]} of {budget} tokens; {cut}]")
    typer.echo(f"[split {instances.splits[row]}; label: {_label_in_words(instances, row)}]")


def _label_in_words(instances: Instances, row: int) -> str:
    label: Any = instances.labels[row]
    if instances.task.kind == "multilabel":
        return ", ".join(code for code, on in zip(instances.label_vocabulary, label, strict=True) if on)
    return f"{label} ({instances.task.classes[int(label)]})"
