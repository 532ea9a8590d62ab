"""The pages of the server: worklist, patient, new patient, bank and run; each file has the routes of one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patients_like_me.serve.pages.rendering import error_page as error_page

if TYPE_CHECKING:
    from fastapi import APIRouter

    from patients_like_me.serve.state import ServeState


def page_routes(state: ServeState) -> APIRouter:
    """Return the routes of all pages and of their assets."""
    from fastapi import APIRouter

    from patients_like_me.serve.pages import assets, bank_page, new_patient, patient_view, run_view, worklist_page

    router = APIRouter(include_in_schema=False)
    for pages in (assets, worklist_page, patient_view, new_patient, bank_page, run_view):
        pages.add_routes(router, state)
    return router
