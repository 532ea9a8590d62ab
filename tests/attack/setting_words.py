"""Settings as people mistype them: every setting of every system and task with values of any kind."""

from __future__ import annotations

import json
import random
import shutil
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from attack.outcome import TOO_LONG, Counts, judge, plm
from attack.stage import Stage
from patients_like_me.files import read_json
from patients_like_me.systems.registry import all_systems
from patients_like_me.tasks.registry import all_tasks

ODD = [
    "-1", "0", "1", "2", "3.0", "2.5", "1e-9", "1e9", "1e308", "NaN", "Infinity", "-Infinity", "true", "false", "null",
    "[]", "[1]", "{}", '"text"', "text", "", " ", "9223372036854775808", "100000000", "auto", "cuda", "mps", "float16",
    "../x", "[/red]", "\x1b[31m", "1,2", "0x10", "١",
]  # fmt: skip


def fields_of(settings: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Return every setting by its name with dots."""
    found: dict[str, FieldInfo] = {}
    for name, field in settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found |= fields_of(kind, f"{prefix}{name}.")
        else:
            found[prefix + name] = field
    return found


def fitting(field: FieldInfo, draw: random.Random) -> str:
    """Return a value of the setting's own kind: one of its words, or a number near the usual one."""
    words = [word for kind in (field.annotation, *get_args(field.annotation)) for word in _words_of(kind)]
    usual = field.default
    if isinstance(usual, bool):
        words += ["true", "false"]
    elif isinstance(usual, int | float):
        near = [usual * factor for factor in (0, 0.5, 2, 10)] + [usual + 1, usual - 1, -usual]
        words += [json.dumps(int(number) if isinstance(usual, int) else number) for number in near]
    elif isinstance(usual, tuple):
        words += [json.dumps(list(usual[:1])), json.dumps([*usual, *usual]), "[]"]
    return draw.choice(words or ODD)


def _words_of(kind: Any) -> list[str]:
    return [json.dumps(word) for word in get_args(kind)] if get_origin(kind) is Literal else []


def given(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def is_kept(wanted: Any, kept: Any) -> bool:
    """Tell whether a setting is what was asked for: yes is not 1, and 3.0 is 3."""
    if isinstance(wanted, list) and isinstance(kept, list):
        return len(wanted) == len(kept) and all(map(is_kept, wanted, kept))
    if isinstance(wanted, bool) != isinstance(kept, bool):
        return False
    if isinstance(wanted, str) and not isinstance(kept, str):
        try:
            return bool(float(wanted) == float(kept))
        except (TypeError, ValueError):
            return False
    return bool(wanted == kept)


class SettingAttack:
    """Give one or two odd settings of a system or its task to a training."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.systems = sorted(all_systems())

    def attack(self, seed: int, counts: Counts, seconds: int = 10) -> str:
        """Draw a system, a setting and a value; return what came of it.

        What was still running when its time was over is no drawn setting: nobody saw how it ends.
        """
        draw = random.Random(seed)
        system = draw.choice(self.systems)
        settings = all_systems()[system].settings_class
        task = draw.choice(["readmission", "length_of_stay", "drug_recommendation"])
        fields = fields_of(settings)
        of_task = {f"task.{name}": field for name, field in fields_of(all_tasks()[task].settings_class).items()}
        changes = {}
        for _ in range(1 if draw.random() < 0.8 else 2):
            chosen = of_task if draw.random() < 0.3 else fields
            name = draw.choice(sorted(chosen))
            # A word of another kind is refused at once; what can be meant has to run.
            changes[name] = fitting(chosen[name], draw) if draw.random() < 0.3 else draw.choice(ODD)
        if draw.random() < 0.03:
            changes["no.such.setting"] = "1"
        out = self.stage.room / "setting-run"
        shutil.rmtree(out, ignore_errors=True)
        words = self.stage.training(out, system=system, cache=self.stage.room / "setting-cache")
        words[words.index("--task") + 1] = task
        for name, value in changes.items():
            words += ["--set", f"{name}={value}"]
        story = f"settings seed {seed}: {system} {task} {changes}"
        told = plm(*words, seconds=seconds)
        judge(counts, told, story, folder=out, ends=(0, 2, TOO_LONG))
        if told.code == TOO_LONG:
            counts.settings_too_long += 1
            return "too long"
        counts.settings += 1
        record = out / "run.json"
        if told.code:
            return "refused" if told.is_refused else "failed"
        if not record.is_file():
            counts.blame("silent_changes", f"{story}: ended well without a run")
            return "failed"
        identity = read_json(record, what="run")["identity"]
        for name, value in changes.items():
            part = identity["task_settings"] if name.startswith("task.") else identity["settings"]
            for step in name.removeprefix("task.").split("."):
                part = part.get(step) if isinstance(part, dict) else None
            if not is_kept(given(value), part):
                counts.blame("silent_changes", f"{story}: {name} became {part!r}")
        return "accepted"
