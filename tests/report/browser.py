"""A real browser looks at a page: Chromium without a window, without a network, and with a ruler.

The page is shown untouched in a frame of a given width, or in several. The script of the surrounding document measures
them and writes what it found into the document, which Chromium prints when all is still.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_CONSOLE = re.compile(r"CONSOLE[^\]]*\] (.*)")
_FOUND = re.compile(r'<pre id="found">(.*?)</pre>', re.DOTALL)
_RULER = """
const looks = [], frames = [...document.querySelectorAll("iframe")];
for (const [number, frame] of frames.entries()) frame.onload = () => {
  const page = frame.contentDocument, root = page.documentElement, view = frame.contentWindow;
  // Everything is unfolded first, as a reader would, so that all of it is measured.
  const folded = [...page.querySelectorAll("details")];
  folded.forEach(each => { if (!each.open) each.querySelector("summary").click(); });
  const seen = element => element.getClientRects().length > 0;
  const boxes = [...page.querySelectorAll("svg")].filter(seen).map(picture =>
    [...picture.querySelectorAll("text")].filter(seen).filter(text => text.textContent.trim()).map(text => {
      const box = text.getBoundingClientRect();
      return {words: text.textContent.trim(), left: box.left, right: box.right, top: box.top, bottom: box.bottom};
    }));
  const overlaps = [];
  for (const picture of boxes) for (let i = 0; i < picture.length; i++) for (let j = 0; j < i; j++) {
    const a = picture[i], b = picture[j];
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    // Boxes are taller than letters: a third of the height may touch.
    if (wide > 1 && high > (Math.min(a.bottom - a.top, b.bottom - b.top)) / 3) overlaps.push([a.words, b.words]);
  }
  const reachable = [...page.querySelectorAll("a[href], summary, [tabindex='0']")].filter(seen);
  const unmarked = reachable.filter(element => {
    element.focus({focusVisible: true, preventScroll: true});
    return page.activeElement !== element || view.getComputedStyle(element).outlineStyle === "none";
  }).map(element => element.textContent.trim().slice(0, 40));
  const stuck = [...page.querySelectorAll("*")].filter(element =>
    element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0 && element.tabIndex < 0 &&
    ["auto", "scroll"].includes(view.getComputedStyle(element).overflowX)).map(element => element.className);
  const sideways = [...page.querySelectorAll(".scroll")].filter(element =>
    element.scrollWidth > element.clientWidth + 1).map(element => element.getAttribute("aria-label"));
  looks[number] = {
    width: root.clientWidth, needed: root.scrollWidth, labels: boxes.flat().length, overlaps, reachable: reachable.length,
    unmarked, stuck, sideways, closed: folded.filter(each => !each.open).length};
  if (Object.keys(looks).length === frames.length) {
    document.getElementById("found").textContent = JSON.stringify(looks);
  }
};
"""


@dataclass(frozen=True)
class Look:
    """What the browser saw of a page at one width; what it complained of, at any of the widths."""

    console: list[str]
    #: Width of the frame, and the width that the page takes in it: more means scrolling sideways.
    width: int
    needed: int
    #: Texts in pictures, and the pairs of them that lie over each other.
    labels: int
    overlaps: list[list[str]]
    #: What the tab key reaches, what of it shows no focus, and what scrolls but cannot be reached.
    reachable: int
    unmarked: list[str]
    stuck: list[str]
    #: Tables that are wider than their box.
    sideways: list[str]
    #: Parts that stayed folded when their heading was pressed.
    closed: int


def look_at(page: str, folder: Path, *, width: int = 1200) -> Look:
    """Show a page in a frame of some width and measure it; half the width is what a zoom of 200 % leaves."""
    return look_at_widths(page, folder, [width])[0]


def look_at_widths(page: str, folder: Path, widths: Sequence[int]) -> list[Look]:
    """Show a page in a frame of each width at once: to start the browser takes longer than to look."""
    assert CHROMIUM is not None
    frames = "".join(
        f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{html.escape(page)}"></iframe>'
        for width in widths
    )
    outer = f'<!DOCTYPE html><html><body><pre id="found"></pre>{frames}<script>{_RULER}</script></body></html>'
    target = folder / "look.html"
    target.write_text(outer, encoding="utf-8")
    words = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr",
        f"--window-size={max(widths) + 40},1000",
        "--virtual-time-budget=30000", "--dump-dom", target.as_uri(),
    ]  # fmt: skip
    shown = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    if shown.returncode:
        # On a busy machine the browser itself ends now and then; what it says of a page does not end it.
        shown = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    found = _FOUND.search(shown.stdout)
    assert found is not None
    assert found[1], "the page was never measured"
    console = _CONSOLE.findall(shown.stderr)
    return [Look(console=console, **look) for look in json.loads(html.unescape(found[1]))]
