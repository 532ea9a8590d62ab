"""How pages are filled in: one jinja environment for HTML, in which every value is escaped, and one for Markdown."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from patients_like_me.plain_text import escaped_markdown


def page_environment(*, markdown: bool = False) -> Environment:
    """Return an environment over the templates of this room; a value that is missing in one is an error."""
    return Environment(
        autoescape=not markdown,  # noqa: S701 - Markdown has an escape of its own, applied to every value
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda name: (files(__package__) / "templates" / name).read_text(encoding="utf-8")),
        finalize=_escape_for_markdown if markdown else None,
    )


def _escape_for_markdown(value: Any) -> Any:
    return escaped_markdown(value) if isinstance(value, str) else value
