"""The stations of a walk, each as a check that a hurt page fails: worklist, patient, what-if, undo, new patient, print.

Each station uses the keyboard alone, but for the ones that say pointer.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect
from serve.browser.chromium import PATIENCE


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def tab_to(page: Page, selector: str, most: int = 200) -> None:
    """Press the tab key until something is reached; what the keyboard cannot reach is a failure."""
    for _ in range(most):
        if page.evaluate("wanted => document.activeElement?.matches(wanted) ?? false", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"the tab key never reaches {selector}")


def check_worklist(page: Page, *, wait: float = PATIENCE) -> str:
    """Narrow and order the list by typing; return the pseudonym that is opened with Enter."""
    rows = page.locator("#people tbody tr:visible")
    everyone = rows.count()
    assert everyone > 3
    risks = [float(row.get_attribute("data-risk") or 0) for row in rows.all()]
    assert risks == sorted(risks, reverse=True)
    assert re.search(r"about \d+ in \d+|fewer than|more than", rows.first.inner_text())
    expect(rows.first.locator("svg.bits, td:has-text('none')").first).to_be_visible(timeout=wait)
    tab_to(page, "#order")
    press(page, "ArrowDown")
    expect(rows.first).to_have_attribute("data-risk", str(_risk_text(page, min)), timeout=wait)
    tab_to(page, "#people a")
    press(page, "Shift+Tab", "Shift+Tab", "Shift+Tab", "Shift+Tab")
    tab_to(page, "#search")
    page.keyboard.type("p1")
    expect(page.locator("#found")).to_contain_text(f"of {everyone} patients", timeout=wait)
    assert all((row.get_attribute("data-name") or "").startswith("P1") for row in rows.all())
    tab_to(page, "#people a")
    name = page.evaluate("document.activeElement.textContent")
    press(page, "Enter")
    page.wait_for_url(f"**/patients/{name}", timeout=PATIENCE)
    return str(name)


def _risk_text(page: Page, choose: Any) -> str:
    texts: list[str] = page.eval_on_selector_all("#people tbody tr", "rows => rows.map(row => row.dataset.risk)")
    return str(choose(texts, key=float))


def check_patient(page: Page) -> None:
    """The clinical words come first, technical ones are folded, the bar of outcomes is there."""
    card = page.locator("section[aria-label=Prediction]")
    assert "%" in card.locator(".number").inner_text()
    words = page.locator("main").inner_text()
    assert "What if?" in words
    for term in ("cosine", "logit", "importance"):
        assert term not in words.lower().split("how this was computed")[0], f"{term} is not folded"
    assert page.locator("details.how").get_attribute("open") is None


def check_what_if(page: Page, *, wait: float = PATIENCE) -> str:
    """Add a diagnosis through the search box with the keyboard; the answer appears without a reload."""
    page.evaluate("window.notReloaded = true")
    tab_to(page, "#add-diagnosis")
    page.keyboard.type("disorders")
    options = page.locator("#what-if [data-search-kind=diagnosis] [role=option]:not([aria-disabled])")
    expect(options.first).to_be_visible(timeout=wait)
    press(page, "ArrowDown")
    box = page.locator("#add-diagnosis")
    expect(box).to_have_attribute("aria-activedescendant", str(options.first.get_attribute("id")), timeout=wait)
    name = str(options.first.evaluate("option => option.firstChild.textContent"))
    press(page, "Enter")
    reply = page.locator("#what-if .reply")
    expect(reply.locator(".number")).to_be_visible(timeout=wait)
    expect(reply).to_contain_text(re.compile(r"from [\d.]+ %|before"), timeout=wait)
    assert reply.get_attribute("aria-live") == "polite"
    assert name in page.locator("#what-if .changes").inner_text()
    assert page.evaluate("window.notReloaded") is True
    return str(reply.inner_text())


def check_undo(page: Page, *, wait: float = PATIENCE) -> None:
    """Leave a similar patient out as well, undo that, and undo all: the first answer is back, then none."""
    reply = page.locator("#what-if .reply")
    first, gone = reply.inner_text(), page.locator("tr[data-reference].gone").count()
    tab_to(page, "tr[data-reference] button:enabled")
    press(page, "Enter")
    expect(page.locator("#what-if .changes li")).to_have_count(2, timeout=wait)
    dropped = page.locator("#what-if .changes li").nth(1).inner_text().split()[-1]
    expect(page.locator(f"tr.gone[data-reference={dropped}]")).to_be_visible(timeout=wait)
    page.locator("#what-if h2").evaluate("heading => { heading.tabIndex = -1; heading.focus() }")
    tab_to(page, "#what-if .undo")
    press(page, "Enter")
    expect(page.locator("#what-if .changes li")).to_have_count(1, timeout=wait)
    assert reply.inner_text() == first
    assert page.locator("tr[data-reference].gone").count() == gone
    tab_to(page, "#what-if .again")
    press(page, "Enter")
    expect(reply).to_be_empty(timeout=wait)
    expect(page.locator("#what-if .asked")).to_be_hidden(timeout=wait)
    assert page.evaluate("document.activeElement.id") == "add-diagnosis"


def check_ego_graph(page: Page, *, wait: float = PATIENCE) -> None:
    """Arrow keys light one reference after the other, Enter unfolds it; a pointer lights it too."""
    picture = page.locator("figure.figure svg:visible:has(g.disc)").first
    discs = picture.locator("g.disc")
    second = discs.nth(1).get_attribute("data-node")
    tab_to(page, "g.disc")
    press(page, "ArrowRight")
    expect(picture).to_have_class(re.compile("lit"), timeout=wait)
    expect(page.locator(".picked").first).to_contain_text(f"{second}:", timeout=wait)
    press(page, "Enter")
    assert page.evaluate("document.activeElement.id") == second
    expect(page.locator(f"section#{second}")).to_be_visible(timeout=wait)
    discs.first.hover()
    expect(page.locator(".picked").first).to_contain_text(f"{discs.first.get_attribute('data-node')}:", timeout=wait)


def check_form_errors(page: Page, *, wait: float = PATIENCE) -> None:
    """An empty form, a wrong age and dates the wrong way round are each named next to their field, and can be reached."""
    visit = page.locator(".visit-form").first
    page.locator("#new-patient button.main").focus()
    press(page, "Enter")
    empty = visit.locator("[data-field=diagnoses] p.field-error")
    expect(empty).to_contain_text("the record is empty", timeout=wait)
    page.locator("#age").focus()
    page.keyboard.type("171")
    visit.locator("[data-field=admission]").fill("2024-05-05")
    visit.locator("[data-field=discharge]").fill("2024-05-01")
    tab_to(page, "#new-patient button.main")
    press(page, "Enter")
    words = page.locator("#age-error")
    expect(words).to_be_visible(timeout=wait)
    assert words.inner_text().strip()
    dates = visit.locator("label:has([data-field=discharge]) + p.field-error")
    expect(dates).to_have_text("the discharge is before the admission", timeout=wait)
    age = page.locator("#age")
    expect(age).to_have_attribute("aria-invalid", "true", timeout=wait)
    expect(age).to_have_attribute("aria-describedby", "age-error", timeout=wait)
    assert page.evaluate("document.activeElement.id") == "typed-problems"
    visit.locator("[data-field=discharge]").fill("2024-05-09")


def check_new_patient(page: Page, *, wait: float = PATIENCE) -> str:
    """Correct the age, choose codes by name, add a visit, and arrive at the patient's page."""
    page.locator("#age").focus()
    press(page, "Control+a")
    page.keyboard.type("71")
    tab_to(page, "#sex")
    page.keyboard.type("f")
    for words in ("heart f", "hypert"):
        _choose(page, 0, "diagnosis", words, wait)
    tab_to(page, "#add-visit")
    press(page, "Enter")
    expect(page.locator(".visit-form")).to_have_count(2, timeout=wait)
    assert "Visit 2" in page.locator(".visit-form legend").nth(1).inner_text()
    for words in ("heart f", "renal f"):
        _choose(page, 1, "diagnosis", words, wait)
    _choose(page, 1, "medication", "furosemide", wait)
    tab_to(page, "#new-patient button.main")
    press(page, "Enter")
    page.wait_for_url("**/patients/N*", timeout=wait)
    words = page.locator("main").inner_text()
    assert "female, 71 years, 2 visits" in words
    assert "No codes" not in words
    return page.url.rsplit("/", 1)[1]


def _choose(page: Page, visit: int, kind: str, words: str, wait: float) -> None:
    holder = page.locator(".visit-form").nth(visit).locator(f"[data-search-kind={kind}]")
    chosen = holder.locator(".chosen li").count()
    holder.locator("input").focus()
    page.keyboard.type(words)
    expect(holder.locator("[role=option]").first).to_be_visible(timeout=wait)
    press(page, "ArrowDown", "Enter")
    expect(holder.locator(".chosen li")).to_have_count(chosen + 1, timeout=wait)


def check_print(page: Page) -> bytes:
    """On paper there is no navigation, no control and no button; the prediction is there. Return the PDF."""
    page.emulate_media(media="print")
    for gone in (".top", "#print", "#add-diagnosis", ".small"):
        assert not page.locator(f"{gone}:visible").count(), f"{gone} is printed"
    assert page.locator("section[aria-label=Prediction]").is_visible()
    written = page.pdf(format="A4")
    page.emulate_media(media="screen")
    assert written.startswith(b"%PDF")
    return written


def check_pasted(page: Page) -> None:
    """Rows pasted from a spreadsheet become a patient without any script's help, and the patient can be forgotten."""
    page.locator("#text").fill("age,64\nsex,M\ndiagnosis,I50.9,1\ndiagnosis,E11.9,1")
    tab_to(page, "form[action='/new/table'] button")
    press(page, "Enter")
    page.wait_for_url("**/patients/N*", timeout=PATIENCE)
    assert "male, 64 years, 1 visit" in page.locator("main").inner_text()
    tab_to(page, "form[action$='/forget'] button", most=400)
    press(page, "Enter")
    page.wait_for_url(re.compile("/$"), timeout=PATIENCE)


def check_save(page: Page, folder: Path) -> str:
    """Save the page with the keyboard; return the file's text."""
    page.locator("#save [type=submit]").focus()
    with page.expect_download(timeout=30_000) as saved:
        press(page, "Enter")
    saved.value.save_as(folder / "saved.html")
    return (folder / "saved.html").read_text(encoding="utf-8")


def check_what_if_is_saved(page: Page, folder: Path) -> str:
    """What is saved while a what-if is shown says so, and holds it; return the file's text."""
    assert "what-if" in page.locator("#save [type=submit]").inner_text()
    saved = check_save(page, folder)
    assert "A what-if, not the record as it is" in saved
    return saved


def check_bank(page: Page) -> None:
    """The bank says how many it holds; the dates of this hospital are shifted as those of MIMIC are, and not shown."""
    words = page.locator("main").inner_text()
    assert "patients can serve as similar patients." in words
    assert "Their dates cannot be given: the dates of these records lie in the future" in words
    assert not re.search(r"\b2[1-9]\d\d\b", words.split("What became of them")[0].split("Bank ")[0])


def check_run(page: Page) -> None:
    """The report on the run is in the frame: its sections are reached by their links, and its tables are there."""
    assert page.locator("nav a[aria-current=page]").inner_text() == "Run"
    links = page.locator("main nav a[href^='#']")
    assert links.count() > 3
    for link in links.all():
        assert page.locator(str(link.get_attribute("href"))).count() == 1
    assert "AUROC" in page.locator("main").inner_text().upper()
    assert page.locator("main table").count() > 2
