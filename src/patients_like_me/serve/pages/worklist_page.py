"""The worklist: today's patients and new ones, with what is predicted, how sure, and what must be known first.

What is searched for may be a patient's id, so the form is posted: an address is kept by browsers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import HTMLResponse

from patients_like_me.serve.access import needs
from patients_like_me.serve.pages.rendering import show
from patients_like_me.serve.worklist import chosen_rows

if TYPE_CHECKING:
    from patients_like_me.serve.state import ServeState

#: More rows are not sent: the list is narrowed by the server then.
MOST_ROWS: Final = 500
#: Seconds that the page takes for lines that are not computed yet; who is missing then is said.
LONGEST: Final = 2.0
#: The orders in which the list can be read: name, words, the state's own word, and whether the largest comes first;
#: {risk} is what the task calls its risks.
ORDERS: Final = (
    ("risk-high", "highest {risk} first", "risk", True),
    ("risk-low", "lowest {risk} first", "risk", False),
    ("support", "best supported first", "support", True),
    ("name", "pseudonym", "pseudonym", False),
)


def add_routes(router: APIRouter, state: ServeState) -> None:
    """Add the routes of the worklist."""

    def page(request: Request, order: str, search: str, flag: str) -> HTMLResponse:
        name, _, sort, descending = next((each for each in ORDERS if each[0] == order), ORDERS[0])
        everyone = state.worklist(sort=sort, descending=descending, within=LONGEST)
        task = state.model.current.run.task
        risk = task.kind.risk_in_words(task.words.items, task.name.replace("_", " "))
        asked = bool(search.strip() or flag)
        rows = chosen_rows(everyone, sort=sort, descending=descending, search=search, flag=flag or None)
        state.looked_at(request, None, "worklist")
        flags = sorted({each for row in everyone for each in row.flags})
        return show(
            "worklist_page.html.jinja",
            request,
            state,
            here="/",
            rows=rows[:MOST_ROWS],
            found=len(rows),
            number=len(everyone),
            waiting=state.listing.waiting(everyone),
            not_listed=state.listing.not_listed,
            is_whole=len(everyone) <= MOST_ROWS and not asked,
            flags=flags,
            orders=[(each[0], each[1].format(risk=risk)) for each in ORDERS],
            order=name,
            search=search,
            flag=flag,
            shows_ranges=any(row.range_in_words for row in everyone),
            shows_outcomes=any(row.outcome_bits for row in everyone),
        )

    @router.get("/", dependencies=[Depends(needs("read"))])
    def worklist(request: Request) -> HTMLResponse:
        return page(request, ORDERS[0][0], "", "")

    @router.post("/", dependencies=[Depends(needs("read"))])
    def narrowed(
        request: Request,
        order: Annotated[str, Form(max_length=20)] = "",
        search: Annotated[str, Form(max_length=200)] = "",
        flag: Annotated[str, Form(max_length=200)] = "",
    ) -> HTMLResponse:
        return page(request, order, search, flag)
