"""One patient: the static page's content in the served frame, what-if by clicking, and the page as a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import ValidationError

from patients_like_me.explanation.risk import one_in
from patients_like_me.plain_text import percent_of
from patients_like_me.report.patient_page import patient_values
from patients_like_me.serve.access import needs
from patients_like_me.serve.pages.rendering import environment, show
from patients_like_me.serve.problems import FieldProblems, HttpProblem, fields_of
from patients_like_me.serve.responses import download
from patients_like_me.serve.shapes import ChangeIn

if TYPE_CHECKING:
    from patients_like_me.explanation.explanation import WhatIf
    from patients_like_me.serve.state import ServeState
    from patients_like_me.serve.views import PatientView

Drug = Annotated[str, Query(max_length=200)]


def add_routes(router: APIRouter, state: ServeState) -> None:
    """Add the routes of one patient."""

    @router.get("/patients/{pseudonym}", dependencies=[Depends(needs("read"))])
    def patient(request: Request, pseudonym: str, drug: Drug = "") -> HTMLResponse:
        view = state.patient(pseudonym, drug=drug or None)
        state.looked_at(request, view.pseudonym, "page")
        explanation = view.explanation
        values: dict[str, Any] = {"e": None} if explanation is None else patient_values(explanation)
        return show(
            "served_patient.html.jinja",
            request,
            state,
            about=view.about,
            **values,
            view=view,
            served=True,
            drug=drug,
            drugs=_drugs_to_ask(view),
            notes=view.notes,
        )

    @router.post("/patients/{pseudonym}/what-if", dependencies=[Depends(needs("what-if"))])
    def what_if(request: Request, pseudonym: str, change: ChangeIn, drug: Drug = "") -> HTMLResponse:
        """Answer with a piece of the page, so that words and numbers are written in one place."""
        from patients_like_me.explanation.what_if import Change

        view = state.what_if(pseudonym, Change(**change.model_dump()), drug=drug or None)
        state.looked_at(request, view.pseudonym, "what-if")
        assert view.explanation is not None
        assert view.explanation.what_if is not None
        piece = environment().get_template("what_if_answer.html.jinja")
        words = in_words(view.explanation.what_if)
        return HTMLResponse(piece.render(e=view.explanation, w=view.explanation.what_if, **words))

    @router.get("/patients/{pseudonym}/file", dependencies=[Depends(needs("read"))])
    def static_file(request: Request, pseudonym: str) -> HTMLResponse:
        return saved(request, pseudonym, None, "")

    @router.post("/patients/{pseudonym}/file", dependencies=[Depends(needs("read"))])
    def file_as_shown(
        request: Request,
        pseudonym: str,
        change: Annotated[str, Form(max_length=100_000)] = "",
        drug: Annotated[str, Form(max_length=200)] = "",
    ) -> HTMLResponse:
        """Save what is shown: with a what-if, the file says at its top that it is one."""
        if not change:
            return saved(request, pseudonym, None, drug)
        if not request.state.access.may("what-if"):
            raise HttpProblem(403, "a what-if needs the role 'what-if', which your token does not have")
        try:
            asked = ChangeIn.model_validate_json(change)
        except ValidationError as error:
            raise FieldProblems(fields_of(error.errors())) from None
        return saved(request, pseudonym, asked, drug)

    def saved(request: Request, pseudonym: str, asked: ChangeIn | None, drug: str) -> HTMLResponse:
        from patients_like_me.explanation.what_if import Change

        change = None if asked is None else Change(**asked.model_dump())
        html = state.static_page(pseudonym, change, drug or None)
        state.looked_at(request, pseudonym, "file, what-if" if change else "file")
        return download(html, f"patient-{pseudonym}{'-what-if' if change else ''}.html")

    @router.post("/patients/{pseudonym}/forget", dependencies=[Depends(needs("upload"))])
    def forget(request: Request, pseudonym: str) -> RedirectResponse:
        state.forget(pseudonym)
        state.looked_at(request, pseudonym, "forgotten", 303)
        return RedirectResponse("/", 303)


def in_words(what_if: WhatIf) -> dict[str, Any]:
    """Return what a what-if says: the new probability, its change, and which drugs come and go."""
    before, after = what_if.before, what_if.after
    found: dict[str, Any] = {
        "headline": after.answer,
        "detail": f"before: {before.answer}",
        "gone": [name for name in before.chosen if name not in after.chosen],
        "won": [name for name in after.chosen if name not in before.chosen],
    }
    if before.probability is None or after.probability is None:
        return found
    points = 100.0 * (after.probability - before.probability)
    moved = f"{'up' if points > 0 else 'down'} by {abs(points):.1f} points"
    change = "hardly changed" if abs(points) < 0.05 else moved
    return found | {
        "headline": f"{percent_of(after.probability)}, {one_in(after.probability)}",
        "detail": f"{change}, from {percent_of(before.probability)} ({one_in(before.probability)})",
    }


def _drugs_to_ask(view: PatientView) -> list[tuple[str, str]]:
    """Return the codes and names of the likely drugs, each of which can be explained alone."""
    if view.explanation is None or view.explanation.drugs is None:
        return []
    return [(option.label, option.name) for option in view.prediction.options]
