"""What ``plm backbones`` shows: every known backbone, whether it can be used here, and what it would cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patients_like_me.errors import PlmError
from patients_like_me.files import read_json
from patients_like_me.model.backbones import PRESETS, backbones_folder, how_to_get
from patients_like_me.model.cost import cost_of
from patients_like_me.model.families import FAMILIES
from patients_like_me.model.locating import locate
from patients_like_me.model.packaged_weights import checked_minilm_folder


@dataclass(frozen=True)
class ListedBackbone:
    """One line of the list; costs are for 1,000 prompts of 256 tokens, None where the shape is not known."""

    name: str
    title: str
    family: str
    kind: str
    parameters: int
    layers: int
    width: int
    licence: str
    #: None where it can be used, else what is missing and how to get it.
    missing: str | None
    trained_parameters: int | None = None
    first_epoch_operations: float | None = None
    later_epoch_operations: float | None = None


def list_backbones() -> list[ListedBackbone]:
    """Return the presets, then what the user added."""
    listed = []
    for preset in PRESETS.values():
        cost = cost_of(preset)
        listed.append(
            ListedBackbone(
                preset.name, preset.title, preset.family, preset.kind, preset.parameters, preset.layers, preset.width,
                preset.licence, _what_is_missing(preset.name), cost.trained_parameters, cost.first_epoch_operations,
                cost.later_epoch_operations,
            )
        )  # fmt: skip
    folder = backbones_folder()
    added = sorted(path.parent for path in folder.glob("*/backbone.json")) if folder.is_dir() else []
    return listed + [_added(path) for path in added if path.name not in PRESETS]


def _what_is_missing(name: str) -> str | None:
    preset = PRESETS[name]
    if locate(name) is None:
        return how_to_get(preset)
    if preset.source == "package":
        try:
            checked_minilm_folder()
        except PlmError as error:
            return str(error)
    return None


def _added(folder: Path) -> ListedBackbone:
    about = read_json(folder / "backbone.json", what="note of an added backbone")
    config = read_json(folder / "config.json", what="configuration of an added backbone")
    family = FAMILIES[about["model_type"]]
    return ListedBackbone(
        folder.name, f"added from {about['source']}", family.title, family.kind, int(about["parameters"]),
        int(config["num_hidden_layers"]), int(config["hidden_size"]), str(about["licence"]), missing=None,
    )  # fmt: skip
