"""A real browser that walks through the served pages, hears every complaint, and can be given a hurt page.

Playwright drives the Chromium of this machine; nothing is downloaded. A :class:`Visitor` keeps what the console says,
what a script throws, and every address outside of the server that a page asks for.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
DESK, ZOOMED, PHONE = 1200, 600, 360
#: Long enough for a busy machine; a check that fails for a planted fault waits the short time only.
PATIENCE, SHORT = 180_000, 1_000

_RULER = """() => {
  const seen = element => element.getClientRects().length > 0 && element.checkVisibility({visibilityProperty: true});
  const reachable = [...document.querySelectorAll(
    "a[href], button, input, select, textarea, summary, [tabindex='0']")].filter(seen).filter(each => !each.disabled);
  const before = document.activeElement;
  const unmarked = reachable.filter(element => {
    element.focus({focusVisible: true, preventScroll: true});
    const drawn = [element, ...element.querySelectorAll("circle")].some(each =>
      getComputedStyle(each).outlineStyle !== "none" || getComputedStyle(each).strokeWidth === "5px");
    return document.activeElement !== element || !drawn;
  }).map(element => element.outerHTML.slice(0, 80));
  if (before instanceof HTMLElement) before.focus({preventScroll: true}); else document.activeElement.blur();
  const stuck = [...document.querySelectorAll("*")].filter(element =>
    element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0 && element.tabIndex < 0 &&
    ["auto", "scroll"].includes(getComputedStyle(element).overflowX)).map(element => element.className);
  return {needed: document.documentElement.scrollWidth, reachable: reachable.length, unmarked, stuck};
}"""


@dataclass
class Visitor:
    """One page of a browser; ``console`` and ``elsewhere`` must stay empty."""

    page: Any
    address: str
    console: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def listen(self) -> None:
        """Keep every message of the page from now on."""
        self.page.on("console", lambda message: self.console.append(message.text))
        self.page.on("pageerror", lambda error: self.console.append(str(error)))
        self.page.on("request", self._note_request)

    def _note_request(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.elsewhere.append(request.url)

    def go(self, path: str) -> None:
        self.page.goto(self.address + path, timeout=PATIENCE)

    def settle(self) -> None:
        """Make the page ready for the next test: no planted fault, no earlier message, a desk in daylight."""
        self.page.unroute_all()
        self.page.set_viewport_size({"width": DESK, "height": 900})
        self.page.emulate_media(media="screen", color_scheme="light")
        self.console.clear()
        self.elsewhere.clear()

    def hurt(self, pattern: str, old: str, new: str) -> None:
        """Let one file of the server arrive with a fault in it; the faultless text must be there."""

        def answer(route: Any) -> None:
            response = route.fetch()
            text = response.text()
            assert old in text, f"{pattern} does not hold {old!r}"
            route.fulfill(response=response, body=text.replace(old, new))

        self.page.route(pattern, answer)


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser of this machine."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@contextmanager
def visitor(browser: Any, server: Any, *, width: int = DESK, scheme: str = "light") -> Iterator[Visitor]:
    """Sign in as a person does, with the address that is printed."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    found = Visitor(page, server.address)
    found.listen()
    page.goto(server.login, timeout=PATIENCE)
    yield found
    context.close()


def measured(page: Any) -> dict[str, Any]:
    """Return how wide the page is, what the tab key reaches, and what of it shows no focus or scrolls unreachably."""
    found: dict[str, Any] = page.evaluate(_RULER)
    return found


def check_fits(page: Any, *, widths: tuple[int, ...] = (DESK, ZOOMED, PHONE)) -> None:
    """Check a page at every width, in light and dark: no sideways scrolling, and every focus can be seen."""
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            found = measured(page)
            assert found["needed"] <= width, f"{found['needed']} px are needed at {width}"
            assert found["reachable"] > 3
            assert found["unmarked"] == []
            assert found["stuck"] == []
    page.set_viewport_size({"width": widths[0], "height": 900})
