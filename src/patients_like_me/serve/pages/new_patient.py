"""A new patient: typed in, pasted from a spreadsheet, or uploaded as a FHIR Bundle or as own tables.

The typed form is sent as JSON to ``/api/v1/patients`` by its script, which puts every error next to its field. The
other two are plain forms: what was wrong is listed above them, and pasted text is still there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Depends, File, Form, Request, UploadFile
from fastapi.responses import RedirectResponse, Response

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import printable
from patients_like_me.serve.access import needs
from patients_like_me.serve.pages.rendering import show
from patients_like_me.serve.problems import FieldProblem, HttpProblem

if TYPE_CHECKING:
    from patients_like_me.serve.state import ServeState

Upload = Annotated[UploadFile | None, File()]
TABLES: Final = ("visits", "events", "names")
_FORM: Final = "new_patient.html.jinja"


def add_routes(router: APIRouter, state: ServeState) -> None:
    """Add the routes by which new patients come in."""
    allowed = [Depends(needs("upload"))]

    def form(
        request: Request, problem: HttpProblem | PlmError | None = None, *, at: str = "", text: str = ""
    ) -> Response:
        fields: tuple[FieldProblem, ...] = problem.fields if isinstance(problem, HttpProblem) else ()
        detail = "" if problem is None else problem.detail if isinstance(problem, HttpProblem) else printable(problem)
        status = 200 if problem is None else problem.status if isinstance(problem, HttpProblem) else 422
        return show(_FORM, request, state, here="/new", status=status, detail=detail, fields=fields, at=at, text=text)

    def added(request: Request, pseudonyms: tuple[str, ...]) -> Response:
        """Go to the one new patient, or to the worklist, where several are marked as new."""
        state.looked_at(request, ",".join(pseudonyms), "added", 303)
        return RedirectResponse(f"/patients/{pseudonyms[0]}" if len(pseudonyms) == 1 else "/", 303)

    @router.get("/new", dependencies=allowed)
    def new(request: Request) -> Response:
        return form(request)

    @router.post("/new/table", dependencies=allowed)
    def pasted(request: Request, text: Annotated[str, Form(max_length=1_000_000)] = "") -> Response:
        try:
            return added(request, state.add_text_table(text))
        except (HttpProblem, PlmError) as problem:
            return form(request, problem, at="paste", text=text)

    @router.post("/new/bundle", dependencies=allowed)
    def bundle(request: Request, bundle: Upload = None) -> Response:
        try:
            return added(request, state.add_patients(_json_of(bundle)))
        except (HttpProblem, PlmError) as problem:
            return form(request, problem, at="bundle")

    @router.post("/new/tables", dependencies=allowed)
    def tables(request: Request, visits: Upload = None, events: Upload = None, names: Upload = None) -> Response:
        given = dict(zip(TABLES, (visits, events, names), strict=True))
        sent = {name: file for name, file in given.items() if file is not None and file.filename}
        try:
            missing = [name for name in TABLES[:2] if name not in sent]
            if missing:
                raise HttpProblem(
                    422, "a table is missing", fields=[FieldProblem(name, "choose a file") for name in missing]
                )
            contents = {name: file.file.read() for name, file in sent.items()}
            names_of_files = {name: str(file.filename) for name, file in sent.items()}
            return added(request, state.add_tables(contents, names=names_of_files))
        except (HttpProblem, PlmError) as problem:
            return form(request, problem, at="tables")


def _json_of(file: UploadFile | None) -> dict[str, Any]:
    """Return the content of a JSON file that must be an object."""
    if file is None or not file.filename:
        raise HttpProblem(422, "no file was chosen", fields=[FieldProblem("bundle", "choose a file")])
    try:
        found = json.loads(file.file.read())
    except (ValueError, RecursionError):
        fields = [FieldProblem("bundle", "the file is not JSON; export it again as one FHIR Bundle")]
        raise HttpProblem(422, "the file cannot be read", fields=fields) from None
    if not isinstance(found, dict) or found.get("resourceType") != "Bundle":
        fields = [FieldProblem("bundle", "the file is not a FHIR Bundle (its resourceType must be 'Bundle')")]
        raise HttpProblem(422, "the file is of another form", fields=fields)
    return found
