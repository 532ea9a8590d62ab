"""How pages are filled in: the templates of this room over those of ``report/``, in one frame with one look."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Literal

from jinja2 import Environment

from patients_like_me import __version__
from patients_like_me.plain_text import counted_of
from patients_like_me.report.page_templates import page_environment
from patients_like_me.report.palette import DARK, LIGHT, css_variables
from patients_like_me.report.patient_page import add_patient_filters
from patients_like_me.report.run_page import add_run_filters
from patients_like_me.serve.pages.small_charts import level_bar, outcome_chart, range_chart

if TYPE_CHECKING:
    from fastapi import Request
    from fastapi.responses import HTMLResponse

    from patients_like_me.serve.state import ServeState
    from patients_like_me.serve.views import RunAbout

#: The pages in the order of the navigation: address, words, and the role without which the page is not offered.
PLACES: Final = (
    ("/", "Worklist", "read"),
    ("/new", "New patient", "upload"),
    ("/bank", "Bank", "read"),
    ("/run", "Run", "read"),
)


@cache
def environment() -> Environment:
    """Return the one environment of the served pages: everything is escaped, a missing value is an error."""
    found = page_environment(packages=("patients_like_me.serve",))
    add_run_filters(found)
    add_patient_filters(found)
    found.filters |= {
        "sentence": sentence,
        "counted_of": counted_of,
        "outcome_chart": outcome_chart,
        "range_chart": range_chart,
        "level_bar": level_bar,
    }
    return found


def show(
    template: str,
    request: Request,
    state: ServeState,
    *,
    here: str = "",
    status: int = 200,
    about: RunAbout | None = None,
    **values: Any,
) -> HTMLResponse:
    """Return a page in the frame: navigation, what the run is about, and who asks."""
    from fastapi.responses import HTMLResponse

    access = request.state.access
    html = (
        environment()
        .get_template(template)
        .render(
            **values,
            about=about or state.about,
            access=access,
            here=here,
            places=[(address, words) for address, words, role in PLACES if access.may(role)],
            version=__version__,
        )
    )
    return HTMLResponse(html, status)


def error_page(status: int, title: str, detail: str) -> str:
    """Return a page that says what was wrong; it shows nothing about the run."""
    template = environment().get_template("error_page.html.jinja")
    return template.render(status=status, title=title, detail=detail, version=__version__)


@cache
def stylesheet(look: Literal["patient", "run"]) -> str:
    """Return the style of served pages: that of the static page with this look, and what only served pages have."""
    template = environment().get_template("served_style.css.jinja")
    return template.render(look=look, light=css_variables(LIGHT), dark=css_variables(DARK))


def warm() -> None:
    """Compile the templates and the style now: the first page would wait for them."""
    included = ("patient_prediction", "patient_details", "run_nav", "run_content")
    names = [file.name for file in (files("patients_like_me.serve") / "templates").iterdir()]
    for name in (*names, *(f"{name}.html.jinja" for name in included)):
        if name.endswith(".html.jinja"):
            environment().get_template(name)
    looks: tuple[Literal["patient", "run"], ...] = ("patient", "run")
    for look in looks:
        stylesheet(look)


def sentence(words: str) -> str:
    """Write words as a sentence: a capital first, a full stop last.

    >>> sentence("no comparable patients"), sentence("Done.")
    ('No comparable patients.', 'Done.')
    """
    whole = words[:1].upper() + words[1:]
    return whole if not whole or whole[-1] in ".!?" else f"{whole}."
