"""The command of the room ``report``: ``plm report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write (.html, .json or .md); default RUN/report.html.")
    ] = None,
    cohort: Annotated[Path | None, typer.Option(help="Where the cohort is now, if it has moved.")] = None,
    replicates: Annotated[int, typer.Option(help="Resamples of patients behind every interval.", min=1)] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the resamples.", min=0)] = 0,
) -> None:
    """Write one page about a whole run: cohort, audit, metrics, calibration, subgroups, references, TRIPOD+AI.

    The page is one file, opens offline, and holds no id, no date and no count of patients under 11. Example patients
    whose pages (plm explain) are next to it get links.

    Example:
        plm report runs/vem

    """
    from rich.console import Console

    from patients_like_me.cli.progress import shown_in
    from patients_like_me.errors import PlmError
    from patients_like_me.files import atomic_file
    from patients_like_me.report.run_page import report_run

    path = run / "report.html" if out is None else out
    endings = (".html", ".json", ".md")
    if path.suffix not in endings:
        raise PlmError(f"the output file must end in {', '.join(endings[:-1])} or {endings[-1]}, got '{path.name}'")
    with Console(stderr=True).status("opening the run") as status:
        found = report_run(
            run, cohort=cohort, pages=path.parent, replicates=replicates, seed=seed, report=shown_in(status)
        )
        status.update("writing the page")
        written = {".html": found.html, ".json": found.json, ".md": found.markdown}[path.suffix]()
        with atomic_file(path) as temporary:
            temporary.write_text(written, encoding="utf-8")
    console = Console(highlight=False, markup=False)
    for sentence in found.summary:
        console.print(sentence, markup=False)
    console.print(f"Page: {path}", markup=False, soft_wrap=True)
