"""A strict reader for our pages: every tag closed in order, no address of another machine, no script."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise

VOID = frozenset({"meta", "link", "br", "img", "hr", "input"})


class Page(HTMLParser):
    """Reads a page and keeps what tests ask for; an unclosed or wrongly closed tag is an error."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"an attribute of <{tag}> twice"
        found = dict(attrs)
        self.tags.append((tag, found))
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if tag == "a":
            self.links.append(str(found.get("href")))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert "svg" in self.open, f"<{tag}/> outside of a picture"

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        """All text of the page."""
        return " ".join(" ".join(self.text).split())


def check_page(text: str) -> Page:
    """Check that a page is well-formed and self-contained, and return it."""
    assert text.count("<!DOCTYPE html>") == 1
    assert text.lstrip().startswith("<!DOCTYPE html>")
    page = Page(text)
    names = [tag for tag, _ in page.tags]
    assert not {"script", "iframe", "object", "embed", "base", "form"} & set(names)
    assert all(names.count(tag) == 1 for tag in ("html", "head", "body", "main", "h1"))
    levels = [int(tag[1]) for tag in names if tag in ("h1", "h2", "h3", "h4", "h5", "h6")]
    assert all(below <= above + 1 for above, below in pairwise(levels)), "a level of headings is skipped"
    assert len(set(page.ids)) == len(page.ids)
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")], f"<{tag}> has a handler"
        for name in ("src", "href", "xlink:href", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:,")), f"<{tag} {name}={value}>"
    assert all(link.removeprefix("#") in page.ids for link in page.links)
    without_names = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?://|//[a-z]|@import|url\(", without_names)
    return page
