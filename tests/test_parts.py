from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from patients_like_me import parts
from patients_like_me.errors import PlmError


@dataclass(frozen=True)
class Gadget:
    name: str


@pytest.fixture
def toolbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with one part in a file of its own, two in another and a file without any."""
    package = tmp_path / "toolbox"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "hammer.py").write_text("from test_parts_gadget import Gadget\nGADGET = Gadget('hammer')\n")
    (package / "pair.py").write_text("from test_parts_gadget import Gadget\nGADGET = (Gadget('nut'), Gadget('bolt'))\n")
    (package / "empty.py").write_text("")
    (tmp_path / "test_parts_gadget.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "test_parts_gadget", sys.modules[__name__])
    parts._found.cache_clear()
    yield tmp_path
    parts._found.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("toolbox", "extra_gadgets")]:
        del sys.modules[name]


def install(folder: Path, content: str) -> None:
    """Put an installed package with an entry point on the path, as a wheel would."""
    (folder / "extra_gadgets.py").write_text(f"from test_parts_gadget import Gadget\n{content}\n")
    about = folder / "extra_gadgets-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: extra-gadgets\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[tests.gadgets]\nsaw = extra_gadgets:GADGET\n")


def found() -> dict[str, Gadget]:
    return dict(parts.found_parts(Gadget, package="toolbox", constant="GADGET", group="tests.gadgets"))


def test_every_file_of_the_package_is_looked_at(toolbox: Path) -> None:
    assert sorted(found()) == ["bolt", "hammer", "nut"]


def test_an_installed_package_adds_a_part(toolbox: Path) -> None:
    install(toolbox, "GADGET = Gadget('saw')")

    assert sorted(found()) == ["bolt", "hammer", "nut", "saw"]


def test_an_installed_package_may_bring_several_parts_at_once(toolbox: Path) -> None:
    install(toolbox, "GADGET = (Gadget('saw'), Gadget('file'))")

    assert sorted(found()) == ["bolt", "file", "hammer", "nut", "saw"]


def test_two_files_of_a_package_may_not_share_a_name(toolbox: Path) -> None:
    (toolbox / "toolbox" / "second.py").write_text("from test_parts_gadget import Gadget\nGADGET = Gadget('hammer')\n")

    with pytest.raises(PlmError, match="brings a second 'hammer'"):
        found()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("GADGET = Gadget('hammer')", "'extra-gadgets' brings a second 'hammer'"),
        ("raise RuntimeError('no saw')", "cannot be loaded"),
        ("import sys; sys.exit(0)", "cannot be loaded .SystemExit: 0."),
        ("raise RuntimeError('a\\nb' * 300)", r"cannot be loaded \(RuntimeError: a ba ba[ab ]*\.\.\.\)"),
        ("GADGET = Gadget('s\\naw')", "has no name"),
        ("GADGET = Gadget('')", "has no name"),
        ("GADGET = 3", "has no name"),
        ("import types; GADGET = types.SimpleNamespace(name='saw')", "is a SimpleNamespace, not a Gadget"),
    ],
)
def test_a_wrong_entry_point_is_left_out_with_a_warning_and_named_where_it_is_asked_for(
    toolbox: Path, content: str, words: str
) -> None:
    install(toolbox, content)

    with pytest.warns(UserWarning, match=words):
        usable = parts.found_parts(Gadget, package="toolbox", constant="GADGET", group="tests.gadgets")
    assert sorted(usable) == ["bolt", "hammer", "nut"]
    with pytest.raises(PlmError, match=words):
        parts.part_named(usable, "saw", "gadget")
    assert parts.part_named(usable, "hammer", "gadget") == Gadget("hammer")


def test_one_part_is_found_without_importing_the_others(toolbox: Path) -> None:
    found = parts.part_in_own_file(Gadget, "hammer", package="toolbox", constant="GADGET")

    assert found == Gadget("hammer")
    assert "toolbox.pair" not in sys.modules
    for elsewhere in ("bolt", "empty", "no such name"):
        assert parts.part_in_own_file(Gadget, elsewhere, package="toolbox", constant="GADGET") is None


def test_an_interruption_while_a_part_is_loaded_is_not_taken_for_a_broken_part(toolbox: Path) -> None:
    install(toolbox, "raise KeyboardInterrupt")

    with pytest.raises(KeyboardInterrupt):
        found()
