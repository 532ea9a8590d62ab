"""How figures look here: no colour needed to read them, and the same file for the same data."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any, Final

from patients_like_me.files import atomic_file
from patients_like_me.plain_text import printable_lines

# Distinguishable without colour vision, and in grey.
COLOURS: Final = ("#0b5394", "#e69f00", "#6aa84f", "#999999")
FAINT: Final = "#b0b0b0"
_FORMATS: Final = ("svg", "png")
_INCHES_PER_LINE: Final = 0.15


def new_figure(
    *, width: float = 6.4, height: float = 4.8, rows: int = 1, columns: int = 1, ratios: tuple[float, ...] = ()
) -> Any:
    """Return a figure and the list of its axes, row by row, without the upper and right frame."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=130)
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=rows > 1, height_ratios=ratios or None).ravel()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def say_empty(axes: Any, words: str) -> None:
    """Write into the axes why nothing is drawn."""
    axes.text(
        0.5,
        0.5,
        textwrap.fill(words, 46),
        transform=axes.transAxes,
        ha="center",
        va="center",
        color="#444444",
        fontsize=10,
    )


def save_figure(figure: Any, folder: Path, name: str, caption: str) -> list[Path]:
    """Write a figure as SVG and PNG with its caption below."""
    _make_plain(figure)
    characters = int(figure.get_figwidth() * 14.5)
    lines = textwrap.wrap(caption, characters)
    # The caption gets room of its own: a long one would leave none to the axes.
    figure.set_figheight(figure.get_figheight() + _INCHES_PER_LINE * len(lines))
    figure.supxlabel("\n".join(lines), fontsize=8, color="#333333", x=0.02, ha="left")
    # The places of all parts are worked out once, not again for every format.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    paths = [folder / f"{name}.{kind}" for kind in _FORMATS]
    for path in paths:
        write_figure(figure, path)
    return paths


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure in the format of its file name; the same data gives the same file, so no date goes into it."""
    from matplotlib import rc_context

    kind = path.suffix.removeprefix(".") or "png"
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    _make_plain(figure)
    with atomic_file(path) as temporary, rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(temporary, format=kind, metadata=metadata)


def _make_plain(figure: Any) -> None:
    """Draw all text as it is: a control character from a hospital's names would make an SVG invalid, a $ a formula."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_text(printable_lines(text.get_text()))
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        # Labels of ticks are made again whenever a figure is drawn.
        labels = [text.get_text() for text in axis.get_ticklabels()]
        if any(label != printable_lines(label) for label in labels):
            axis.set_ticklabels([printable_lines(label) for label in labels])
