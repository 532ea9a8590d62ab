"""Settings as people mistype them: every setting of every system and task with values of any kind."""

from __future__ import annotations

import json
import random
import shutil
from typing import Any

from pydantic import BaseModel

from attack.outcome import Counts, judge, plm
from attack.stage import Stage
from patients_like_me.files import read_json
from patients_like_me.systems.registry import all_systems
from patients_like_me.tasks.registry import all_tasks

ODD = [
    "-1", "0", "1", "2", "3.0", "2.5", "1e-9", "1e9", "1e308", "NaN", "Infinity", "-Infinity", "true", "false", "null",
    "[]", "[1]", "{}", '"text"', "text", "", " ", "9223372036854775808", "100000000", "auto", "cuda", "mps", "float16",
    "../x", "[/red]", "\x1b[31m", "1,2", "0x10", "١",
]  # fmt: skip


def names_of(settings: type[BaseModel], prefix: str = "") -> list[str]:
    """Return every setting with its dots."""
    found = []
    for name, field in settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += names_of(kind, f"{prefix}{name}.")
        else:
            found.append(prefix + name)
    return found


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
    """Give one or two odd settings to a training or an audit."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.systems = sorted(all_systems())

    def attack(self, seed: int, counts: Counts, seconds: int = 10) -> str:
        """Draw a system, a setting and a value; return what came of it."""
        draw = random.Random(seed)
        system = draw.choice(self.systems)
        settings = all_systems()[system].settings_class
        task = draw.choice(["readmission", "length_of_stay", "drug_recommendation"])
        names = names_of(settings)
        of_task = [f"task.{name}" for name in names_of(all_tasks()[task].settings_class)]
        changes = {
            draw.choice(of_task if draw.random() < 0.3 else names): draw.choice(ODD)
            for _ in range(1 if draw.random() < 0.8 else 2)
        }
        if draw.random() < 0.03:
            changes["no.such.setting"] = "1"
        out = self.stage.room / "setting-run"
        shutil.rmtree(out, ignore_errors=True)
        words = self.stage.training(out, system=system, cache=self.stage.room / "setting-cache")
        words[words.index("--task") + 1] = task
        for name, value in changes.items():
            words += ["--set", f"{name}={value}"]
        counts.settings += 1
        story = f"settings seed {seed}: {system} {task} {changes}"
        told = plm(*words, seconds=seconds)
        judge(counts, told, story, folder=out)
        record = out / "run.json"
        if told.is_refused or not record.is_file():
            return "refused" if told.is_refused else "accepted"
        identity = read_json(record, what="run")["identity"]
        for name, value in changes.items():
            part = identity["task_settings"] if name.startswith("task.") else identity["settings"]
            for step in name.removeprefix("task.").split("."):
                part = part.get(step) if isinstance(part, dict) else None
            if not is_kept(given(value), part):
                counts.blame("silent_changes", f"{story}: {name} became {part!r}")
        return "accepted"
