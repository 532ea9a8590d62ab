"""Measured points and fitted growth of the parts of a plan, as a figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from patients_like_me.drawing import COLOURS, new_figure, write_figure
from patients_like_me.report.scale_plan import ScalePlan

_MARKERS = "osv^Dd*x"


def draw_growth(plan: ScalePlan, path: Path) -> None:
    """Draw the seconds of one core of every part against the instances, both on logarithmic scales."""
    figure, (axes,) = new_figure(width=8.0, height=5.0)
    for number, part in enumerate(plan.parts):
        colour, marker = COLOURS[number % len(COLOURS)], _MARKERS[number % len(_MARKERS)]
        sizes, seconds = zip(*part.points, strict=True)
        grid = np.geomspace(min(sizes), max(plan.instances, *sizes), 60)
        line = "-" if number < len(COLOURS) else "--"
        axes.plot(grid, [part.seconds(round(size)) for size in grid], line, color=colour, linewidth=1)
        axes.plot(sizes, seconds, marker, color=colour, label=f"{part.name} (N^{part.growth(plan.instances):.2f})")
    axes.axvline(plan.instances, color="#999999", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("instances (marks: measured; lines: fitted growth; dotted: what was asked)")
    axes.set_ylabel("seconds of one core")
    axes.legend(frameon=False, fontsize=8)
    write_figure(figure, path)
