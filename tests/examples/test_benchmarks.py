"""Benchmarks run for minutes and in no test; what they share with one another and take from the package is there."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FILES = sorted(BENCHMARKS.glob("*.py"))


def names_in(file: Path) -> set[str]:
    """Return the names that a file defines or imports at its top level."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                found |= {alias.asname or alias.name for alias in aliases}
    return found


def missing_of(file: Path) -> list[str]:
    """Return what a benchmark imports, from its neighbours or the package, that is not there."""
    missing = []
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        neighbour = BENCHMARKS / f"{node.module}.py"
        if neighbour.is_file():
            missing += [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in names_in(neighbour)]
        elif node.module.startswith("patients_like_me"):
            missing += [f"{node.module}.{alias.name}" for alias in node.names if not is_in(node.module, alias.name)]
    return missing


def is_in(module: str, name: str) -> bool:
    """Tell whether a name can be imported from a module; it can be a module itself."""
    found = import_module(module)
    return hasattr(found, name) or (hasattr(found, "__path__") and find_spec(f"{module}.{name}") is not None)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_everything_that_a_benchmark_imports_is_there(file: Path) -> None:
    assert missing_of(file) == []


@pytest.mark.parametrize("words", [["--only", "graph"], ["--only", "million", "--stages", "ingest,grph"]])
def test_a_part_that_is_not_there_is_refused(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "scale.py"), "--quick", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"{words[-2]} does not know" in done.stderr


def test_a_name_that_is_gone_is_found(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("from _measure import run_measured\nfrom patients_like_me.errors import PlmError, NoError\n")
    assert missing_of(planted) == ["_measure.run_measured", "patients_like_me.errors.NoError"]
