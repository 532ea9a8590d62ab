"""Atomic writes: whole or not at all."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pkgutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from patients_like_me.errors import PlmError
from patients_like_me.files import (
    atomic_file,
    atomic_folder,
    copy_folder,
    end_open_blocks,
    only_writer,
    read_json,
    remove_leftovers,
    sha256_of_file,
    waiting_writer,
    write_json,
)


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_json(target, {"old": 1})
    with pytest.raises(RuntimeError), atomic_file(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert read_json(target, what="test file") == {"old": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_copy_leaves_out_what_is_not_finished_and_names_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    for name in ("run.json", "lock", "model/theta", "model/.theta.partial", ".out.partial/run.json"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(name)
    copied = tmp_path / "copy"
    copied.mkdir()
    copy_folder(run, copied, without=("lock",))
    assert sorted(str(path.relative_to(copied)) for path in copied.rglob("*") if path.is_file()) == [
        "model/theta",
        "run.json",
    ]

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shutil.copy2", fails)
    with pytest.raises(OSError, match="No space left") as caught:
        copy_folder(run, copied)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("interrupted", "writing"),
    [
        ("pathlib.Path.unlink", lambda path: atomic_file(path / "a.json")),
        ("shutil.rmtree", lambda path: atomic_folder(path, replace=True)),
        ("pathlib.Path.unlink", only_writer),
        ("pathlib.Path.unlink", waiting_writer),
    ],
)
def test_ctrl_c_while_tidying_up_leaves_nothing_behind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupted: str,
    writing: Callable[[Path], AbstractContextManager[object]],
) -> None:
    folder = tmp_path / "cohort"
    folder.mkdir()
    (folder / "old.txt").write_text("old")
    owner, name = pkgutil.resolve_name(interrupted.rpartition(".")[0]), interrupted.rpartition(".")[2]
    do, calls = getattr(owner, name), []

    def interrupt_once(*given: Any, **named: Any) -> Any:
        calls.append(given)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return do(*given, **named)

    with pytest.raises(KeyboardInterrupt), writing(folder) as temporary:
        if temporary is not None and Path(str(temporary)).is_file():
            Path(str(temporary)).write_text("new")
        monkeypatch.setattr(interrupted, interrupt_once)
    monkeypatch.undo()
    assert len(calls) > 1
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert not {name for name in left if name.endswith((".partial", ".lock"))}
    assert "cohort" in left


def test_ctrl_c_while_the_lock_is_taken_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    lock, calls = fcntl.flock, []

    def interrupt_once(*given: Any) -> None:
        calls.append(given)
        if len(calls) == 1:
            raise KeyboardInterrupt
        lock(*given)

    monkeypatch.setattr(fcntl, "flock", interrupt_once)
    with pytest.raises(KeyboardInterrupt), only_writer(tmp_path / "run"):
        pass
    assert len(calls) > 1
    assert not (tmp_path / "run").exists()


def test_ctrl_c_that_comes_when_the_lock_is_taken_waits_until_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    lock, calls, went_on = fcntl.flock, [], []

    def interrupted_once(*given: Any) -> None:
        lock(*given)
        calls.append(given)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)
            went_on.append(given)

    monkeypatch.setattr(fcntl, "flock", interrupted_once)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), only_writer(tmp_path / "run"):
        pytest.fail("the block must not begin")
    assert went_on, "the lock was left in the middle"
    assert signal.getsignal(signal.SIGINT) is before
    assert not (tmp_path / "run").exists()


def test_an_interrupted_exchange_gives_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, rename = tmp_path / "cohort", Path.rename
    folder.mkdir()
    (folder / "old.txt").write_text("old")

    def interrupt_the_second(path: Path, target: Path) -> Path:
        if Path(target) == folder and ".retired" not in path.name:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupt_the_second)
    with pytest.raises(KeyboardInterrupt), atomic_folder(folder, replace=True) as temporary:
        (temporary / "new.txt").write_text("new")
    monkeypatch.undo()
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [
        "cohort",
        "cohort/old.txt",
    ]


def test_a_finished_file_follows_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", 1)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o640


def test_ctrl_c_removes_a_folder_into_which_threads_still_write(tmp_path: Path) -> None:
    """Ctrl-C reaches the main thread alone; what others are writing then must not stay behind."""

    def write(folder: Path) -> None:
        with suppress(OSError):
            for number in range(60):
                (folder / f"{number}.parquet").write_bytes(bytes(1000))
                time.sleep(0.005)

    with pytest.raises(KeyboardInterrupt), atomic_folder(tmp_path / "cohort") as folder:
        writers = [threading.Thread(target=write, args=(folder,)) for _ in range(3)]
        for writer in writers:
            writer.start()
        time.sleep(0.02)
        raise KeyboardInterrupt
    for writer in writers:
        writer.join()
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), atomic_folder(tmp_path / "run") as folder:
        (folder / "half").write_text("x")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_refused_or_replaced_whole(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "run") as folder:
        (folder / "old").write_text("x")
    with pytest.raises(PlmError, match="exists already"), atomic_folder(tmp_path / "run"):
        pass
    with atomic_folder(tmp_path / "run", replace=True) as folder:
        (folder / "new").write_text("x")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_a_killed_process_left_is_removed_and_a_living_one_is_spared(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "run") as temporary:
        machine = temporary.name.removeprefix(".run.").partition("-")[0]
    dead = tmp_path / f".run.{machine}-999999999.partial"
    living = tmp_path / f".run.{machine}-{os.getppid()}.partial"
    elsewhere = tmp_path / ".run.abcdef-999999999.partial"
    for folder in (dead, living, elsewhere):
        folder.mkdir()
    with atomic_folder(tmp_path / "run", replace=True):
        pass
    assert not dead.exists()
    assert living.exists()
    assert elsewhere.exists(), "a process of another machine may be writing it"


def test_broken_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(PlmError, match=r"the settings '.*' is not readable JSON"):
        read_json(tmp_path / "x.json", what="settings")
    with pytest.raises(PlmError, match="no settings at"):
        read_json(tmp_path / "y.json", what="settings")


def test_hash_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256_of_file(tmp_path / "x").startswith("ba7816bf8f01cfea")


def _hold(folder: Path, told: Connection) -> None:
    with only_writer(folder):
        told.send("held")
        time.sleep(60)


def test_one_process_writes_at_a_time_and_a_killed_one_gives_the_lock_back(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    heard, told = context.Pipe()
    other = context.Process(target=_hold, args=(tmp_path / "run", told))
    other.start()
    try:
        assert heard.recv() == "held"
        with pytest.raises(PlmError, match="another process is working on"), only_writer(tmp_path / "run"):
            pass
        assert (tmp_path / "run" / ".lock").exists()
    finally:
        other.kill()
        other.join()
    with only_writer(tmp_path / "run"):
        (tmp_path / "run" / "result").write_text("x")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["result"]


@pytest.mark.parametrize("name", ["note.txt", "a[b].txt"])
def test_what_a_killed_process_left_of_a_file_is_removed(tmp_path: Path, name: str) -> None:
    code = f"""
import os
from pathlib import Path
from patients_like_me.files import atomic_file
with atomic_file(Path({str(tmp_path / name)!r})) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    with atomic_file(tmp_path / name) as temporary:
        # A process that is alive keeps what it writes.
        with atomic_file(tmp_path / name) as other:
            other.write_text("other")
        temporary.write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "whole"


def test_parts_of_files_and_folders_are_removed(tmp_path: Path) -> None:
    (tmp_path / "bank" / ".graph.7.partial" / ".deep.partial").mkdir(parents=True)
    (tmp_path / ".run.json.x.partial").touch()
    (tmp_path / "run.json").touch()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["bank", "run.json"]


def test_an_interruption_right_after_the_temporary_file_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("patients_like_me.files.os.close", interrupted)
        with pytest.raises(KeyboardInterrupt), atomic_file(tmp_path / "weights"):
            pass
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_between_a_block_and_its_body_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        block = atomic_file(tmp_path / "weights")
        block.__enter__()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        interrupted()
    # The traceback holds the block: until it lets go, the file is there.
    assert len(list(tmp_path.iterdir())) == 1
    end_open_blocks(stopped.value)
    assert list(tmp_path.iterdir()) == []
