"""The rooms read only from rooms before them: every import is walked, lazy and type-only ones too."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import patients_like_me
from patients_like_me.tasks.registry import all_tasks

PACKAGE = Path(patients_like_me.__file__).parent
ORDER = (
    "codes",
    "records",
    "tasks",
    "graph",
    "runs",
    "model",
    "training",
    "systems",
    "evaluation",
    "explanation",
    "report",
    "serve",
    "cli",
)
#: Files beside the rooms that are not part of the hall: the public face and the demo use every room.
ABOVE_ALL = {"__init__", "__main__", "demo", "face", "shown"}
DATA_ONLY = {"presets"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def rank(room: str) -> int:
    """The hall, whose files are beside the rooms, comes first."""
    return ORDER.index(room) if room in ORDER else -1


#: A module, or a name in it, that is written as text: import_module("..."), "module:Class".
WRITTEN = re.compile(r"patients_like_me(\.\w+)+(:\w+)?")


def imported_modules(source: str, path: Path) -> list[tuple[int, str]]:
    found = []
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the room"
            found.append((node.lineno, node.module or ""))
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and WRITTEN.fullmatch(node.value):
            found.append((node.lineno, node.value.partition(":")[0]))
    return found + modules_used_as_attributes(tree)


def modules_used_as_attributes(tree: ast.Module) -> list[tuple[int, str]]:
    """Return what is reached through the package itself: ``import patients_like_me``, ``patients_like_me.report``."""
    names = {
        alias.asname or "patients_like_me"
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "patients_like_me" or (alias.name.startswith("patients_like_me.") and not alias.asname)
    }
    return [
        (node.lineno, f"patients_like_me.{node.attr}")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names
    ]


def backward_imports(source: str, path: Path) -> list[str]:
    own = room_of(path)
    if own in ABOVE_ALL:
        return []
    wrong = set()
    for line, module in imported_modules(source, path):
        parts = module.split(".")
        if parts[0] != "patients_like_me" or len(parts) < 2:
            continue
        above = (ABOVE_ALL - {"__init__"}) | set(patients_like_me.__all__)
        if parts[1] != own and (parts[1] in above or rank(parts[1]) > rank(own)):
            wrong.add(f"{path.relative_to(PACKAGE)}:{line} imports {'.'.join(parts[:3])}")
    return sorted(wrong)


def test_no_import_goes_backwards() -> None:
    wrong = [line for path in sorted(PACKAGE.rglob("*.py")) for line in backward_imports(path.read_text(), path)]

    assert wrong == []


def test_a_backward_import_would_be_found() -> None:
    path = PACKAGE / "graph" / "build.py"
    lazy = "def f():\n    from patients_like_me.report.patient_page import write\n"
    typed = "if TYPE_CHECKING:\n    from patients_like_me import explanation\n"

    assert len(backward_imports(lazy, path)) == 1
    assert len(backward_imports(typed, path)) == 1
    assert len(backward_imports("from patients_like_me import train\n", path)) == 1
    assert backward_imports("from patients_like_me.tasks.task import Task\n", path) == []
    assert len(backward_imports('import_module("patients_like_me.report.page")\n', path)) == 1
    assert len(backward_imports('SETTINGS = "patients_like_me.training.settings:Settings"\n', path)) == 1
    assert len(backward_imports("import patients_like_me as plm\nplm.train()\n", path)) == 1
    assert len(backward_imports("import patients_like_me\npatients_like_me.report.page\n", path)) == 1


def loading_order(sources: dict[str, str]) -> list[str]:
    """Return modules by name in an order in which they can be loaded; CycleError names those that need each other.

    A module needs what it imports at module level and the packages around that; its own packages are loaded before.
    """
    graph = {}
    for name, source in sources.items():
        top = [node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
        named = {module for _, module in imported_modules("\n".join(map(ast.unparse, top)), PACKAGE) if module != name}
        around = {
            above for module in named for above in packages_around(module) if not f"{name}.".startswith(f"{above}.")
        }
        graph[name] = (named | around) & sources.keys()
    return list(TopologicalSorter(graph).static_order())


def packages_around(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def test_no_two_modules_import_each_other_when_they_are_loaded() -> None:
    """A cycle at module level would make the order of imports matter; lazy and type-only imports cannot."""
    sources = {
        ".".join(("patients_like_me", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path.read_text()
        for path in PACKAGE.rglob("*.py")
    }

    assert len(loading_order(sources)) == len(sources)


def test_a_cycle_through_a_package_would_be_found() -> None:
    through_package = {"a": "", "a.b": "from a.b.c import x", "a.b.c": "import a.d", "a.d": "from a.b.e import y"}
    fine = {"a": "", "a.b": "from a.b.c import x", "a.b.c": "", "a.b.e": "import a.b.c", "a.d": "from a.b.e import y"}

    with pytest.raises(CycleError):
        loading_order({**through_package, "a.b.e": ""})
    assert len(loading_order(fine)) == 5


def test_records_and_code_systems_know_no_task() -> None:
    """What a task means is said in its own file; the rooms before it read records for any task."""
    names = re.compile("|".join(rf"\b{name}\b" for name in all_tasks()))
    rooms = [path for room in ("codes", "records") for path in (PACKAGE / room).rglob("*.py")]

    assert [path.name for path in rooms if names.search(path.read_text())] == []


def test_every_folder_is_a_room() -> None:
    folders = {folder.name for folder in PACKAGE.iterdir() if folder.is_dir() and folder.name != "__pycache__"}

    assert folders <= {*ORDER, *DATA_ONLY}


def test_the_package_imports_without_slow_libraries() -> None:
    slow = ("torch", "polars", "numpy", "pydantic", "typer", "rich", "numba", "transformers")
    program = f"import sys, patients_like_me; print([name for name in {slow!r} if name in sys.modules])"

    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_help_is_printed_without_slow_libraries() -> None:
    slow = ("torch", "polars", "numpy", "pydantic", "numba", "transformers", "rich.progress", "patients_like_me.face")
    program = (
        "import sys; from patients_like_me.cli import app\n"
        "try: app(['--help'])\n"
        f"except SystemExit: print([name for name in {slow!r} if name in sys.modules], file=sys.stderr)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert finished.stderr == "[]\n"
    assert "[bold]" not in finished.stdout
