"""How the run was made: settings, versions and cost, so that it can be made again."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final

from patients_like_me import __version__
from patients_like_me.plain_text import printable
from patients_like_me.report.run_report import Section, Table, Text
from patients_like_me.report.run_sections.material import Material

_COLUMNS: Final = ("name", "value")


def settings_section(material: Material) -> Section:
    """Return all settings, the versions behind run and report, and what the training took."""
    record, results, identity = material.run.record, material.run.results, material.run.identity
    made = {
        "trained with": f"patients-like-me {identity.version}",
        "reported with": f"patients-like-me {__version__}, Python {platform.python_version()}",
        **{name: value for name, value in record.environment.items() if value is not None},
        "seconds of training": f"{results.seconds:.0f}",
        "peak memory in GiB": f"{results.peak_gib:.2f}",
    }
    if results.best_epoch is not None:
        made["epochs"] = f"{results.epochs}, the best was {results.best_epoch}"
    tables = material.run.cohort.about.get("identity", {}).get("code_tables", {})
    for name, value in flat({**tables.get("packages", {}), **tables.get("installed", {})}):
        made[f"code table {name}"] = value
    return Section(
        "settings",
        "Settings and versions",
        (
            Text(f"Cohort {material.run.cohort.hash}, system {identity.system}, task {identity.task}."),
            _table("Versions, machine and cost.", made),
            _table("Settings of the task.", dict(flat(identity.task_settings)), "Settings of the task"),
            _table("Settings of the system.", dict(flat(identity.settings)), "Settings of the system"),
        ),
    )


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested settings under dotted names.

    >>> list(flat({"graph": {"tau": 8, "max_neighbors": None}}))
    [('graph.tau', '8'), ('graph.max_neighbors', 'none')]
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield before + name, shown_setting(value)


def shown_setting(value: Any) -> str:
    """Write a setting; of a path only its last part, for folders may tell whose machine it was.

    >>> shown_setting("/home/somebody/models/bert"), shown_setting([0.6, 0.4]), shown_setting(None)
    ('bert', '0.6, 0.4', 'none')
    >>> shown_setting([{"file": "/home/somebody/map.csv", "rows": 3}])
    'file map.csv, rows 3'
    """
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {shown}" for name, shown in flat(value))
    if isinstance(value, list | tuple):
        return ", ".join(shown_setting(each) for each in value)
    text = printable(value)
    is_path = isinstance(value, str) and ("\\" in text or text.startswith(("/", "~", ".")))
    return PurePath(text.replace("\\", "/")).name if is_path else text


def _table(caption: str, values: Mapping[str, Any], fold: str = "") -> Table:
    rows = tuple((printable(name), printable(value)) for name, value in values.items())
    return Table(caption, _COLUMNS, rows, fold=fold)
