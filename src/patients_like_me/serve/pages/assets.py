"""The style and the scripts: read from the package by their names, and nothing else is."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Final, Literal

from fastapi import APIRouter
from fastapi.responses import Response

from patients_like_me.serve.pages.rendering import stylesheet
from patients_like_me.serve.problems import HttpProblem

if TYPE_CHECKING:
    from patients_like_me.serve.state import ServeState

#: Every script by its name; a name that is not here is not looked for on disk.
SCRIPTS: Final = ("code_search.js", "ego_graph.js", "new_patient.js", "patient.js", "what_if.js", "worklist.js")
STYLES: Final[dict[str, Literal["patient", "run"]]] = {"style.css": "patient", "run.css": "run"}


def add_routes(router: APIRouter, state: ServeState) -> None:
    """Add the route of assets."""
    del state

    @router.get("/assets/{name}")
    def asset(name: str) -> Response:
        if name in STYLES:
            return Response(stylesheet(STYLES[name]), media_type="text/css; charset=utf-8")
        if name not in SCRIPTS:
            raise HttpProblem(404, "there is no such file")
        script = files("patients_like_me.serve") / "assets" / name
        return Response(script.read_bytes(), media_type="text/javascript; charset=utf-8")
