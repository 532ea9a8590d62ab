"""The application: the guard, the API, CDS Hooks, and the pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from patients_like_me import __version__
from patients_like_me.serve.access import Gate
from patients_like_me.serve.api import api_routes
from patients_like_me.serve.cds_hooks import cds_routes
from patients_like_me.serve.guard import Guard, GuardSettings, refusal
from patients_like_me.serve.pages import error_page, page_routes
from patients_like_me.serve.problems import FieldProblems, HttpProblem, fields_of
from patients_like_me.serve.shapes import TAGS

if TYPE_CHECKING:
    from patients_like_me.serve.state import ServeState

_ABOUT = (
    "Predictions of one run for one patient at a time, with the earlier patients that each leans on. Send the token as "
    "`Authorization: Bearer`. Errors are problem+json and name the field. Everything stays on this machine."
)


def create_app(state: ServeState, gate: Gate, settings: GuardSettings) -> FastAPI:
    """Return the application that serves a state."""
    app = FastAPI(
        title="Patients-like-me",
        version=__version__,
        description=_ABOUT,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        middleware=[Middleware(Guard, gate=gate, settings=settings, error_page=error_page)],
    )

    def on_wrong_fields(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return refusal(wrong_fields(error), request.scope, error_page)

    def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        words = {404: "there is no such page", 405: "this method is not served here", 400: "the body cannot be read"}
        problem = HttpProblem(error.status_code, words.get(error.status_code, "the request is refused"))
        problem.headers.update(error.headers or {})
        return refusal(problem, request.scope, error_page)

    app.add_exception_handler(RequestValidationError, on_wrong_fields)
    app.add_exception_handler(HTTPException, on_http_error)
    app.include_router(api_routes(state))
    app.include_router(cds_routes(state, settings))
    app.include_router(page_routes(state))
    _document(app)
    return app


def wrong_fields(error: RequestValidationError) -> HttpProblem:
    """Return the fields of a body that are wrong; a body that is not JSON has none."""
    errors = error.errors()
    if any(each["type"] == "json_invalid" for each in errors):
        return HttpProblem(400, "the body is not JSON")
    return FieldProblems(fields_of(errors, TAGS | {"query", "path"}))


def _document(app: FastAPI) -> None:
    """Let the OpenAPI document say how to bring a token."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        document = made()
        schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["token"] = {"type": "http", "scheme": "bearer"}
        document["security"] = [{"token": []}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]
