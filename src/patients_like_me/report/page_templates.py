"""How pages are filled in: one jinja environment for HTML, in which every value is escaped, and one for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, FunctionLoader, StrictUndefined

from patients_like_me.plain_text import escaped_markdown


def page_environment(*, markdown: bool = False, packages: Sequence[str] = ()) -> Environment:
    """Return an environment over the templates of this room; a value that is missing in one is an error.

    ``packages`` have templates of their own, which are looked for first.
    """
    return Environment(
        autoescape=not markdown,  # noqa: S701 - Markdown has an escape of its own, applied to every value
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=ChoiceLoader([FunctionLoader(partial(_template, package)) for package in (*packages, __package__)]),
        finalize=_escape_for_markdown if markdown else None,
    )


def _template(package: str, name: str) -> str | None:
    """Return the text of a template in a package; None where it has no such template."""
    file = files(package) / "templates" / name
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _escape_for_markdown(value: Any) -> Any:
    return escaped_markdown(value) if isinstance(value, str) else value
