"""The figures of experiments: panels one below the other over one axis, readable in grey."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from patients_like_me.drawing import COLOURS, new_figure, save_figure, say_empty
from patients_like_me.evaluation.intervals import SeedSpread

_MARKERS: Final = ("o", "s", "^", "D", "v", "P")
_DASHES: Final = ("-", "--", "-.", ":")
_HEADROOM: Final = 0.12
_WIDEST: Final = 12.0


@dataclass(frozen=True)
class Point:
    """A value with the ends of its whisker."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, found: SeedSpread | None, scale: float = 1.0) -> Point | None:
        """Make a point of a mean over seeds, its whisker one standard deviation to each side."""
        if found is None:
            return None
        if found.deviation is None:
            return cls(scale * found.mean)
        return cls(scale * found.mean, scale * (found.mean - found.deviation), scale * (found.mean + found.deviation))


@dataclass(frozen=True)
class Series:
    """Points of one kind, one per place of the axis; None where there is none."""

    label: str
    points: tuple[Point | None, ...]


@dataclass(frozen=True)
class Panel:
    """One panel: what its vertical axis measures, and its series."""

    measure: str
    series: tuple[Series, ...]
    kind: str = "points"
    logarithmic: bool = False
    #: The decimals of the number above each bar.
    digits: int = 1


def draw_panels(
    folder: Path,
    name: str,
    *,
    places: Sequence[str],
    axis: str,
    panels: Sequence[Panel],
    caption: str,
    chosen: str | None = None,
    chosen_words: str = "",
) -> list[Path]:
    """Draw panels over the same places; ``chosen`` is marked by a vertical line with its words in the legend.

    ``kind`` of a panel is ``points``, ``lines`` or ``bars``.
    """
    widest = max(len(line) for place in places for line in place.split("\n"))
    width = max(6.4, 1.6 + 0.1 * widest * len(places), 1.6 + 0.9 * len(places))
    crowded = width > _WIDEST
    height = 1.0 + (2.5 + (0.08 * widest if crowded else 0)) * len(panels)
    figure, axes = new_figure(width=min(width, _WIDEST), height=height, rows=len(panels))
    for axis_of_panel, panel in zip(axes, panels, strict=True):
        _draw_panel(axis_of_panel, panel, places)
        if crowded:
            axis_of_panel.tick_params(axis="x", labelrotation=90)
        if chosen in places and panel.kind != "bars":
            place = list(places).index(str(chosen))
            axis_of_panel.axvline(place, color="black", linewidth=0.9, linestyle=(0, (4, 3)), zorder=0)
    handles, labels = _legend_of(axes)
    if chosen in places and chosen_words:
        handles.append(_dashed_line())
        labels.append(chosen_words)
    if len(labels) > 1 or (labels and labels[0]):
        # Outside the panels: it covers no point.
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 4), frameon=False, fontsize=9)
    axes[-1].set_xlabel(axis)
    return save_figure(figure, folder, name, caption)


def _draw_panel(axes: Any, panel: Panel, places: Sequence[str]) -> None:
    axes.set_xticks(range(len(places)), places)
    axes.set_xlim(-0.6, len(places) - 0.4)
    axes.tick_params(labelbottom=True)
    axes.set_ylabel(panel.measure)
    if not any(point is not None for series in panel.series for point in series.points):
        say_empty(axes, "not available")
        axes.set_yticks([])
        return
    step = 0.0 if panel.kind == "lines" else min(0.14, 0.6 / len(panel.series))
    for number, series in enumerate(panel.series):
        colour, marker = COLOURS[number % len(COLOURS)], _MARKERS[number % len(_MARKERS)]
        shift = (number - (len(panel.series) - 1) / 2) * step
        drawn = [(place, point) for place, point in enumerate(series.points) if point is not None]
        across, values = [place + shift for place, _ in drawn], [point.value for _, point in drawn]
        if panel.kind == "bars":
            axes.bar(across, values, width=0.5, color=colour, label=series.label)
            for place, value in zip(across, values, strict=True):
                axes.annotate(
                    f"{value:,.{panel.digits}f}", (place, value), (0, 3), textcoords="offset points", ha="center",
                    fontsize=9,
                )  # fmt: skip
            continue
        style = _DASHES[number % len(_DASHES)] if panel.kind == "lines" else "none"
        axes.plot(across, values, marker=marker, color=colour, linestyle=style, markersize=6, label=series.label)
        for place, (_, point) in zip(across, drawn, strict=True):
            if point.low is not None and point.high is not None:
                axes.plot([place, place], [point.low, point.high], color=colour, linewidth=1.2)
    if panel.logarithmic:
        axes.set_yscale("log")
    else:
        axes.margins(y=_HEADROOM)
    if panel.kind == "bars":
        axes.set_ylim(bottom=None if panel.logarithmic else 0)


def _legend_of(axes: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Return the legend of all panels, every label once."""
    found: dict[str, Any] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)


def _dashed_line() -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color="black", linewidth=0.9, linestyle=(0, (4, 3)))
