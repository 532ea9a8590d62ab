"""The bank: how many references there are, from when, what became of them, and how today's patients differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse

from patients_like_me.serve.access import needs
from patients_like_me.serve.pages.rendering import show

if TYPE_CHECKING:
    from patients_like_me.serve.state import ServeState


def add_routes(router: APIRouter, state: ServeState) -> None:
    """Add the route of the bank."""

    @router.get("/bank", dependencies=[Depends(needs("read"))])
    def bank(request: Request) -> HTMLResponse:
        return show("bank_page.html.jinja", request, state, here="/bank", bank=state.bank())
