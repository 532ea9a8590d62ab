"""The masking figure: what is lost when the first k references are taken away, by each method."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from patients_like_me.drawing import new_figure, save_figure, say_empty
from patients_like_me.explanation.masking_experiment import LOGIT, PROBABILITY, RANDOM, MaskingResult

_STYLES: Final = ("-", "--", "-.", ":")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h")
_COLOURS: Final = ("#0b5394", "#b45f06", "#38761d", "#741b47", "#444444", "#134f5c", "#7f6000", "#990000", "#20124d")
_SPREAD: Final = 0.7
_TITLES: Final = {LOGIT: "fall of the target logit", PROBABILITY: "mean absolute change of probability"}


def draw_masking(result: MaskingResult, folder: Path, *, task: str, name: str = "masking") -> list[Path]:
    """Draw the change of the paper's measure and of the probabilities against k; the band is random removal."""
    shown = [result.measures[0], PROBABILITY]
    figure, axes = new_figure(width=8.0, height=8.4, rows=2)
    for axis, measure in zip(axes, shown, strict=True):
        _draw(axis, result, measure)
        axis.set_ylabel(_TITLES.get(measure, f"change of {measure}"))
    axes[-1].set_xlabel("references removed per instance (k)")
    axes[-1].set_xticks(result.ks)
    axes[0].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    axes[0].set_title(f"{task.replace('_', ' ')}: {result.group}", fontsize=10)
    fewer = max(result.fewer.values(), default=0)
    caption = (
        f"Masking experiment on {result.instances:,} instances, of which {result.with_references:,} have references; "
        f"up to {fewer:,} have fewer than k and lose all of them. Above: change of the metric when the first k "
        "references of every instance, by each method, are removed one instance at a time (lower: they mattered "
        "more). Below: how far the probabilities move, whatever the labels (higher: they mattered more). Grey band: "
        "random removal with its 95 % interval over patients; bars: 95 % intervals."
    )
    return save_figure(figure, folder, name, caption)


def _draw(axis: Any, result: MaskingResult, measure: str) -> None:
    axis.axhline(0.0, color="black", linewidth=0.6)
    drawn = False
    for number, method in enumerate([*[name for name in result.methods if name != RANDOM], RANDOM]):
        changes = [result.change(method, k, measure) for k in result.ks]
        usable = [change for change in changes if change.value is not None]
        if not usable:
            continue
        drawn = True
        ks, values = [change.k for change in usable], [change.value for change in usable]
        if method == RANDOM:
            low = [change.interval.low if change.interval else change.value for change in usable]
            high = [change.interval.high if change.interval else change.value for change in usable]
            axis.fill_between(ks, low, high, color="#bbbbbb", alpha=0.5, linewidth=0, label="random, 95 % interval")
            axis.plot(ks, values, color="#777777", linewidth=2.5, label="random")
            continue
        colour = _COLOURS[number % len(_COLOURS)]
        # Methods are drawn a little apart, so that their marks and intervals do not cover each other.
        shift = ((number + 0.5) / max(len(result.methods) - 1, 1) - 0.5) * _SPREAD
        axis.plot(
            [k + shift for k in ks],
            values,
            color=colour,
            linestyle=_STYLES[number % len(_STYLES)],
            linewidth=0.9,
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=5,
            markerfacecolor=colour if number % 2 else "white",
            label=method.replace("_", " "),
        )
        for change in usable:
            if change.interval is not None:
                ends = [change.interval.low, change.interval.high]
                axis.plot([change.k + shift] * 2, ends, color=colour, linewidth=0.8, alpha=0.6)
    if not drawn:
        say_empty(axis, f"{measure} is not available: one class only")
