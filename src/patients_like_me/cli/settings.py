"""The command ``plm settings``: every setting with its meaning and its value in each preset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel


def settings(
    system: Annotated[str, typer.Option("--system", help="Whose settings; [bold]plm systems[/] lists them.")] = (
        "patients_like_me"
    ),
    task: Annotated[str, typer.Option(help="The task whose settings are listed as task.NAME.")] = "readmission",
    find: Annotated[str, typer.Option(help="Only settings whose name or meaning has this word.")] = "",
) -> None:
    """List all settings that --set NAME=VALUE can change, with their meaning and their value in each preset.

    Examples:
        plm settings

        plm settings --find graph

        plm settings --system references --task drug_recommendation

    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from patients_like_me.errors import PlmError
    from patients_like_me.settings import calibration_of_preset, preset_names
    from patients_like_me.systems.choosing import chosen_system
    from patients_like_me.systems.registry import find_system
    from patients_like_me.tasks.registry import find_task, task_settings_of

    presets = preset_names()
    chosen = find_system(system)
    of_system = {name: _flat(chosen.settings_of(name)) for name in presets}
    of_task = {name: _flat(task_settings_of(task, name), "task.") for name in presets}
    meanings = _meanings(chosen.settings_class) | _meanings(find_task(task).settings_class, "task.")
    table = Table("setting", title=f"Settings of {system}, {task}", title_justify="left", show_lines=True)
    table.columns[0].no_wrap = True
    table.add_column("meaning", ratio=1)
    table.add_column("preset: value", no_wrap=False)
    rows = 0
    for values in (of_system, of_task):
        for name in dict.fromkeys(each for found in values.values() for each in found):
            meaning = meanings.get(name, "")
            if find and find.lower() not in f"{name} {meaning}".lower():
                continue
            shown = {preset: values[preset].get(name, "–") for preset in presets}
            table.add_row(escape(name), escape(meaning), escape(_by_preset(shown)))
            rows += 1
    if not rows:
        raise PlmError(f"no setting has the word '{find}'", remedy="give another word, or leave out --find")
    console = Console()
    console.print(table)
    ways = ", ".join(f"{name} {calibration_of_preset(name)}" for name in presets)
    trained = _by_preset({name: chosen_system(None, name) for name in presets}).replace("\n", "; ")
    console.print(f"Default system by preset: {trained}.", markup=False)
    console.print(f"Recalibration (plm train --calibrate): {ways}.", markup=False)


def _by_preset(values: dict[str, str]) -> str:
    r"""Write one value where all presets agree, else one line per value.

    >>> _by_preset({"paper": "8", "quick": "8"}), _by_preset({"paper": "8", "quick": "4", "clinical": "8"})
    ('8', 'paper, clinical: 8\nquick: 4')
    """
    groups: dict[str, list[str]] = {}
    for preset, value in values.items():
        groups.setdefault(value, []).append(preset)
    if len(groups) == 1:
        return next(iter(groups))
    return "\n".join(f"{', '.join(names)}: {value}" for value, names in groups.items())


def _flat(found: BaseModel, before: str = "") -> dict[str, str]:
    """Return the values of settings under dotted names."""
    import json

    values: dict[str, str] = {}

    def walk(part: Any, name: str) -> None:
        if isinstance(part, dict) and part:
            for key, value in part.items():
                walk(value, f"{name}.{key}" if name else str(key))
        else:
            values[before + name] = part if isinstance(part, str) else json.dumps(part)

    walk(found.model_dump(mode="json"), "")
    return values


def _meanings(kind: type[BaseModel], before: str = "") -> dict[str, str]:
    """Return what the settings of a class mean, under dotted names."""
    from pydantic import BaseModel

    found: dict[str, str] = {}
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= _meanings(field.annotation, f"{before}{name}.")
        else:
            found[before + name] = field.description or ""
    return found
