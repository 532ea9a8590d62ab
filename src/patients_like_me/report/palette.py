"""The colours of pages, light and dark, named by use; a test computes that text can be read on every ground."""

from __future__ import annotations

from typing import Final

LIGHT: Final = {
    "ground": "#f5f7fa",
    "card": "#ffffff",
    "ink": "#1c2733",
    "muted": "#51606f",
    "line": "#cfd8e1",
    "accent": "#0b5394",
    "good-ground": "#dff2e3",
    "good-ink": "#14532d",
    "fair-ground": "#fff3d6",
    "fair-ink": "#713f12",
    "none-ground": "#e6eaef",
    "none-ink": "#2b3642",
    "tied": "#a3061e",
    "bar": "#5b7896",
}
DARK: Final = {
    "ground": "#11161c",
    "card": "#1a222b",
    "ink": "#e8edf2",
    "muted": "#a9b6c3",
    "line": "#3a4754",
    "accent": "#8ec1f2",
    "good-ground": "#143d22",
    "good-ink": "#c9f0d3",
    "fair-ground": "#4a3608",
    "fair-ink": "#ffe9b3",
    "none-ground": "#2f3a45",
    "none-ink": "#e8edf2",
    "tied": "#ff9aa6",
    "bar": "#8fa9c4",
}


def css_variables(palette: dict[str, str]) -> str:
    """Return a palette as CSS variables.

    >>> css_variables({"ink": "#000000"})
    '--ink: #000000;'
    """
    return " ".join(f"--{name}: {colour};" for name, colour in palette.items())
