"""The report on the run, as ``plm report`` writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse

from patients_like_me.serve.access import needs
from patients_like_me.serve.pages.rendering import show

if TYPE_CHECKING:
    from patients_like_me.serve.state import ServeState


def add_routes(router: APIRouter, state: ServeState) -> None:
    """Add the route of the report."""

    @router.get("/run", dependencies=[Depends(needs("read"))])
    def run(request: Request) -> HTMLResponse:
        return show("served_run.html.jinja", request, state, here="/run", r=state.run_report())
