"""The whole walk in a real browser: worklist, patient, what-if, undo, new patient, print; and faults that are seen.

One server and one browser serve all tests of this file. The walk uses the keyboard alone and looks at every page at three
widths, in light and dark. ``PLM_SCREENSHOT=1`` renews the picture of the README.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serve.browser.chromium import CHROMIUM, DESK, PHONE, SHORT, Visitor, check_fits, chromium, measured, visitor

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("playwright", reason="playwright is not installed")

from report.page_checks import check_page
from serve.browser import stations
from serve.browser.accessibility import axe_script, serious_findings
from serve.browser.demo_hospital import demo_run
from serve.running import RunningServer

from patients_like_me.serve.state import ServeState
from patients_like_me.training.settings import TrainingSettings

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: install the package 'chromium'")
PICTURE = Path(__file__).parents[3] / "docs" / "images" / "serve-patient.png"


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, tiny_settings: Callable[..., TrainingSettings]
) -> Iterator[RunningServer]:
    """Serve the synthetic hospital; the lines of the list are computed once."""
    run, cohort = demo_run(tmp_path_factory.mktemp("demo"), tiny_settings)
    state = ServeState(run, cohort=cohort)
    assert len(state.worklist()) > 10
    state.bank(wait=True)
    with RunningServer(state) as running:
        yield running


@pytest.fixture(scope="module")
def signed_in(server: RunningServer) -> Iterator[Visitor]:
    """Sign in once, as a person does."""
    with chromium() as browser, visitor(browser, server) as found:
        yield found


@pytest.fixture
def person(signed_in: Visitor) -> Iterator[Visitor]:
    """Return somebody who is signed in and looks at the worklist."""
    if not signed_in.page.url.endswith("/"):
        signed_in.go("/")
    yield signed_in
    signed_in.settle()


def best_supported(server: RunningServer) -> str:
    """Return a patient with references, for whom everything can be asked."""
    rows = [row for row in server.state.worklist() if len(row.outcome_bits) > 3]
    return max(rows, key=lambda row: len(row.outcome_bits)).pseudonym


def check_accessible(page: Any) -> None:
    """Check with axe-core at a desk in light and on a phone in the dark; without it, the other checks go on."""
    if axe_script() is None:
        return
    for width, scheme in ((DESK, "light"), (PHONE, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        assert serious_findings(page) == []
    page.set_viewport_size({"width": DESK, "height": 900})
    page.emulate_media(color_scheme="light")


def test_the_walk_with_the_keyboard_alone(person: Visitor, server: RunningServer, tmp_path: Path) -> None:
    page = person.page
    check_fits(page)
    check_accessible(page)
    stations.check_worklist(page)

    name = best_supported(server)
    person.go(f"/patients/{name}")
    stations.check_patient(page)
    check_fits(page)
    stations.check_what_if(page)
    check_accessible(page)
    _picture(page)
    check_page(stations.check_what_if_is_saved(page, tmp_path))
    stations.check_undo(page)
    stations.check_ego_graph(page)
    assert len(stations.check_print(page)) > 20_000

    plain = stations.check_save(page, tmp_path)
    check_page(plain)
    assert "A what-if" not in plain

    person.go("/new")
    check_fits(page)
    check_accessible(page)
    stations.check_form_errors(page)
    check_accessible(page)
    # A browser writes every refused request into its console; nothing else is there.
    assert [line for line in person.console if "422" not in line] == []
    person.console.clear()
    newcomer = stations.check_new_patient(page)
    check_fits(page, widths=(PHONE, DESK))

    person.go("/new")
    stations.check_pasted(page)

    person.go("/bank")
    check_fits(page)
    check_accessible(page)
    stations.check_bank(page)

    person.go("/run")
    check_fits(page)
    check_accessible(page)
    stations.check_run(page)

    person.go("/")
    assert newcomer in page.locator("#people").inner_text()
    assert person.console == []
    assert person.elsewhere == []


def _picture(page: Any) -> None:
    """Renew the picture of the README where that is asked for."""
    if not os.environ.get("PLM_SCREENSHOT"):
        return
    PICTURE.parent.mkdir(exist_ok=True)
    page.set_viewport_size({"width": 1000, "height": 1180})
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=PICTURE)
    page.set_viewport_size({"width": DESK, "height": 900})
    assert PICTURE.stat().st_size < 300_000


def test_axe_core_is_here_and_sees_what_is_wrong(person: Visitor) -> None:
    if axe_script() is None:
        pytest.skip("axe-core is not here, and npm could not bring it")
    page = person.page
    assert serious_findings(page) == []
    page.evaluate("document.querySelector('label[for=search]').remove()")
    page.evaluate("document.getElementById('found').style.color = '#f4f5f6'")
    assert {line.split(":")[0] for line in serious_findings(page)} >= {"label", "color-contrast"}


def test_the_checks_of_the_look_see_what_is_wrong(person: Visitor) -> None:
    page = person.page
    page.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<svg width=1300 height=9></svg>')")
    with pytest.raises(AssertionError, match="px are needed"):
        check_fits(page)
    person.hurt("**/assets/style.css", "outline: 3px solid var(--accent)", "outline: none !important")
    person.go("/new")
    assert len(measured(page)["unmarked"]) > 5
    assert measured(page)["stuck"] == []
    page.evaluate("document.querySelector('.example').removeAttribute('tabindex')")
    page.set_viewport_size({"width": 200, "height": 900})
    assert measured(page)["stuck"] == ["example"]


def test_an_inline_script_is_refused_and_heard(person: Visitor) -> None:
    person.page.route(
        f"{person.address}/bank",
        lambda route: route.fulfill(
            response=(found := route.fetch()),
            body=found.text().replace("</main>", "<script>window.ran = 1</script><p style='color: red'>x</p></main>"),
        ),
    )
    person.go("/bank")
    assert person.page.evaluate("window.ran") is None
    assert len([line for line in person.console if "Content Security Policy" in line]) == 2


FAULTS = [
    ("worklist.js", "row.hidden = !kept", "row.hidden = false", "worklist"),
    ("worklist.js", "body.append(", "Array.of(", "worklist"),
    ("what_if.js", "reply.innerHTML = step.html", "", "what-if"),
    ("what_if.js", "steps.push(", "location.reload(", "what-if"),
    ("code_search.js", 'event.key === "Enter"', 'event.key === "F9"', "what-if"),
    ("code_search.js", '"aria-activedescendant", list', '"data-none", list', "what-if"),
    ("what_if.js", "steps.splice(number)", "", "undo"),
    ("ego_graph.js", "{ ArrowRight: 1,", "{ ArrowRight: 0,", "graph"),
    ("ego_graph.js", 'addEventListener("mouseenter"', 'addEventListener("never"', "graph"),
    ("new_patient.js", "words.textContent = message", "", "errors"),
    ("new_patient.js", 'input.setAttribute("aria-invalid", "true")', "", "errors"),
    ("new_patient.js", 'path === "visits" ?', 'path === "none" ?', "errors"),
    ("new_patient.js", "line.dataset.entry = found.entry", "line.dataset.other = found.entry", "new"),
    ("what_if.js", "JSON.stringify(step.change)", '""', "save"),
    ("style.css", ".top, .no-print, .small, footer { display: none }", "", "print"),
]


@pytest.mark.parametrize(("file", "old", "new", "station"), FAULTS, ids=[f"{f[3]}-{n}" for n, f in enumerate(FAULTS)])
def test_a_planted_fault_is_seen(
    file: str, old: str, new: str, station: str, person: Visitor, server: RunningServer, tmp_path: Path
) -> None:
    page = person.page
    person.hurt(f"**/assets/{file}", old, new)
    if station == "worklist":
        page.reload()
    elif station in ("errors", "new"):
        person.go("/new")
    else:
        person.go(f"/patients/{best_supported(server)}")
    if station in ("undo", "save"):
        stations.check_what_if(page)
    checks: dict[str, Callable[[], object]] = {
        "worklist": lambda: stations.check_worklist(page, wait=SHORT),
        "what-if": lambda: stations.check_what_if(page, wait=SHORT),
        "undo": lambda: stations.check_undo(page, wait=SHORT),
        "graph": lambda: stations.check_ego_graph(page, wait=SHORT),
        "errors": lambda: stations.check_form_errors(page, wait=SHORT),
        "new": lambda: stations.check_new_patient(page),
        "print": lambda: stations.check_print(page),
        "save": lambda: stations.check_what_if_is_saved(page, tmp_path),
    }
    with pytest.raises(AssertionError):
        checks[station]()


@pytest.mark.parametrize(
    ("path", "old", "new", "check"),
    [
        ("/patients/", '<details class="card how"', '<details open class="card how"', stations.check_patient),
        ("/new", 'action="/new/table"', 'action="/new/tables"', stations.check_pasted),
        ("/bank", "cannot be given: ", "from 2110-01 to 2190-12: ", stations.check_bank),
        ("/run", 'id="hubs"', 'id="gone"', stations.check_run),
    ],
    ids=["patient", "pasted", "bank", "run"],
)
def test_a_fault_planted_in_a_page_is_seen(
    path: str, old: str, new: str, check: Callable[[Any], None], person: Visitor, server: RunningServer
) -> None:
    address = f"{path}{best_supported(server)}" if path.endswith("/") else path
    person.hurt(f"{person.address}{address}", old, new)
    person.go(address)
    with pytest.raises(AssertionError):
        check(person.page)
