"""The command of the room ``explanation``: ``plm explain``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from patients_like_me.explanation.drug_matrix import DrugMatrix
    from patients_like_me.explanation.explanation import Explanation
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.report.self_page import SelfPage
    from patients_like_me.runs.run import Run


def explain(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    instance: Annotated[str | None, typer.Option(help="The visit id of the instance.")] = None,
    example: Annotated[
        int | None, typer.Option(help="Instead of an id: the number of the instance within its split, from 1.")
    ] = None,
    split: Annotated[str, typer.Option(help="[bold]test[/] or [bold]validation[/].")] = "test",
    drug: Annotated[str | None, typer.Option(help="Explain one drug, such as A10A; default: the whole set.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Probability from which the answer is yes; default: tuned on validation.")
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="What if this reference (R3) were not there; repeatable.")
    ] = None,
    tau: Annotated[int | None, typer.Option(help="What if an edge needed at least this many shared diagnoses.")] = None,
    add_diagnosis: Annotated[
        list[str] | None, typer.Option(help="What if the patient had this diagnosis too; repeatable.")
    ] = None,
    remove_diagnosis: Annotated[
        list[str] | None, typer.Option(help="What if the patient did not have this diagnosis; repeatable.")
    ] = None,
    show_ids: Annotated[
        bool, typer.Option("--show-ids", help="Show patient and visit ids; default: pseudonyms only.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The page to write (.html, .json or .md); default RUN/explanations/SPLIT-NUMBER.html."),
    ] = None,
    cohort: Annotated[
        Path | None,
        typer.Option(help="A cohort of new patients, whose last visits are explained; or where the run's own is now."),
    ] = None,
    trained_on: Annotated[
        Path | None, typer.Option("--trained-on", help="Where the run's own cohort is now, if it has moved.")
    ] = None,
) -> None:
    """Show which earlier patients a prediction leans on: a table, and a page to open.

    Patients appear under pseudonyms (R1, R2, ...), dates as days before the current admission. New patients (--cohort)
    are linked to the run's bank of training patients, as plm predict links them. A system without references that
    explains itself, such as RETAIN, shows a page of its own kind.

    Examples:
        plm explain runs/vem --example 3

        plm explain runs/drugs --instance 22595853 --drug A10A --show-ids --out page.html

        plm explain runs/vem --example 3 --drop R1 --tau 5 --add-diagnosis 108 --remove-diagnosis 49

        plm explain runs/vem --cohort todays-cohort --example 1

    """
    from rich.console import Console

    from patients_like_me.errors import PlmError
    from patients_like_me.explanation.explain import explain as explain_row
    from patients_like_me.explanation.newcomers import scene_of_newcomers
    from patients_like_me.explanation.scene import chosen_row, set_scene
    from patients_like_me.explanation.what_if import Change
    from patients_like_me.files import atomic_file
    from patients_like_me.report.patient_page import patient_markdown, patient_page
    from patients_like_me.report.self_page import explains_itself, self_page_of
    from patients_like_me.runs.run import load_run

    write = {".html": patient_page, ".md": patient_markdown}
    if out is not None and out.suffix not in (*write, ".json"):
        raise PlmError(f"the output file must end in .html, .json or .md, got '{out.name}'")
    change = Change(
        tuple(name.upper() for name in drop or ()), tau, tuple(add_diagnosis or ()), tuple(remove_diagnosis or ())
    )
    opened = load_run(run, trained_on or cohort)
    if explains_itself(opened):
        if change or show_ids or threshold is not None:
            raise PlmError(
                f"the system '{opened.identity.system}' explains itself, without references",
                remedy="leave out --drop, --tau, --add-diagnosis, --remove-diagnosis, --show-ids and --threshold",
            )
        _show_page(opened, self_page_of(opened, split, instance=instance, example=example, drug=drug), out)
        return
    with Console(stderr=True).status("opening the run") as status:
        newcomers = None if cohort is None else _newcomers(run, cohort)
        if newcomers is not None:
            scene = scene_of_newcomers(load_run(run, trained_on), newcomers)
            if instance is None and example is None and len(scene.own_rows) == 1:
                example = 1
        else:
            scene = set_scene(opened, split)
        row = chosen_row(scene, instance=instance, example=example)
        status.update("explaining")
        found = explain_row(scene, row, drug=drug, threshold=threshold, show_ids=show_ids, change=change or None)
    # Another cohort of new patients must not overwrite the pages of the first.
    whose = found.split if newcomers is None else f"{found.split}-{newcomers.hash[:8]}"
    path = out or run / "explanations" / f"{whose}-{found.example}.html"
    written = found.json() if path.suffix == ".json" else write[path.suffix](found)
    with atomic_file(path) as temporary:
        temporary.write_text(written, encoding="utf-8")
    console = Console()
    _print(console, found)
    console.print(f"Page: {path}", markup=False)


def _newcomers(run: Path, folder: Path) -> Cohort | None:
    """Return the new patients of a cohort folder; None where it is the run's own cohort, which has moved."""
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.runs.run import load_run

    cohort = Cohort.load(folder)
    return None if cohort.hash == load_run(run).identity.cohort else cohort


def _show_page(run: Run, page: SelfPage, out: Path | None) -> None:
    """Write and print how a system explains one of its predictions."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from patients_like_me.files import atomic_file
    from patients_like_me.report.self_page import written_cell

    path = out or run.folder / "explanations" / f"{page.split}-{page.example}.html"
    with atomic_file(path) as temporary:
        temporary.write_text(page.written(path.suffix), encoding="utf-8")
    console = Console()
    console.print(page.found.title, markup=False)
    console.print(page.found.sentence, markup=False)
    for part in page.found.tables:
        table = Table(*(escape(column) for column in part.columns), title=escape(part.title))
        for values in part.rows:
            shown = zip(part.columns, values, strict=True)
            table.add_row(*(escape(written_cell(value, name)) for name, value in shown))
        console.print(table)
        if part.sentence:
            console.print(part.sentence, markup=False)
    console.print(f"Page: {path}", markup=False)


def _drug_table(drugs: DrugMatrix) -> Table:
    """Return the likely drugs by name, with who received them."""
    from rich.markup import escape
    from rich.table import Table

    from patients_like_me.plain_text import percent_of

    table = Table("drug", title="Drugs likely given")
    table.add_column("probability", justify="right", no_wrap=True)
    if drugs.has_last_visit:
        table.add_column("last visit", no_wrap=True)
    if drugs.others:
        table.add_column("received by", justify="right", no_wrap=True)
    for row in drugs.rows:
        name = row.label if row.name == row.label else f"{row.label}: {row.name}"
        cells = [escape(name), percent_of(row.probability)]
        cells += ["yes" if row.at_last_visit else ""] if drugs.has_last_visit else []
        cells += [f"{sum(was is True for was in row.received)} of {len(row.received)}"] if drugs.others else []
        table.add_row(*cells)
    return table


def _print(console: Console, found: Explanation) -> None:
    """Print the prediction, its support and the references."""
    from rich.markup import escape
    from rich.table import Table

    from patients_like_me.plain_text import percent_of
    from patients_like_me.report.patient_page import direction_in_words

    prediction, support = found.prediction, found.support
    console.print(f"{found.patient.title}: {found.patient.about}", markup=False)
    if prediction.risk is not None:
        shown = f"{percent_of(prediction.probability)} {prediction.subject}: {prediction.risk.words}"
        console.print(shown, style="bold", markup=False)
    console.print(prediction.decision_in_words, markup=False)
    if support.is_missing:
        console.print(f"Predicted from the patient's own record alone: {support.reasons[0]}.", markup=False)
    else:
        console.print(f"{support.word.capitalize()}: {'; '.join(support.reasons)}.", markup=False)
        if support.outcomes:
            compared = f" For comparison: {support.training_rate}." if support.training_rate else ""
            console.print(f"Of the {found.compared_with}, {support.outcomes}.{compared}", markup=False)
    for note in found.notes:
        console.print(note, style="dim", markup=False)
    if found.drugs:
        console.print(_drug_table(found.drugs))
        if found.drugs.interactions:
            pairs = "; ".join(
                f"{drug} with {', '.join(others)}" for drug, others in found.drugs.interactions_by_drug.items()
            )
            console.print(f"Known interactions among them: {pairs}.", markup=False)
    if found.references:
        table = Table(
            "reference", "what became of them", "what they do to the prediction", "who", title=found.references_title
        )
        table.add_column("shared", justify="right", no_wrap=True)
        for item in found.references:
            cells = [
                item.person.title + (f" (another visit of {item.same_patient_as})" if item.same_patient_as else ""),
                item.outcome or "not known to the model",
                direction_in_words(item),
                "; ".join([item.person.about, *item.differs]),
                str(item.weight),
            ]
            table.add_row(*(escape(cell) for cell in cells))
        console.print(table)
    if found.turning:
        console.print(found.turning.sentence, markup=False)
    if found.what_if:
        before, after = found.what_if.before, found.what_if.after
        table = Table("", "before", "after", title=escape(f"What if: {found.what_if.change}"))
        table.add_row("answer", escape(before.answer), escape(after.answer))
        table.add_row("probability", percent_of(before.probability), percent_of(after.probability))
        table.add_row("references", ", ".join(before.references) or "none", ", ".join(after.references) or "none")
        console.print(table)
