"""Writing so that nothing half-written is ever seen: a temporary name first, then one rename; one writer at a time."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import platform
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from patients_like_me.errors import BusyError, PlmError

_CHUNK = 1 << 20
#: The file in a folder that the process which writes there holds.
LOCK = ".lock"


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that takes its place when the block ends without an error.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with atomic_file(target) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> target.read_text(), [file.name for file in target.parent.iterdir()]
    ('whole', ['note.txt'])
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # What a killed process of this machine left for the same file is removed; that of another machine may be alive.
    prefix = f".{path.name}.{_machine()}-"
    for leftover in path.parent.glob(f"{glob.escape(prefix)}*.partial"):
        if not _is_process_alive(leftover.name.removeprefix(prefix).partition("-")[0]):
            leftover.unlink(missing_ok=True)
    temporary = path.with_name(f"{prefix}{os.getpid()}-{os.urandom(4).hex()}.partial")
    try:
        # Made within the block: Ctrl-C that comes between making and using the file must not leave it behind.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with full_disk_named():
            yield temporary
        # The temporary file is private; the finished one follows the user's own habit (umask).
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        _flush_to_disk(temporary)
        temporary.replace(path)
    finally:
        _surely(lambda: temporary.unlink(missing_ok=True))


def _surely(tidy: Callable[[], object]) -> None:
    """Tidy up to the end, also when Ctrl-C comes in the middle of it: then once more, before the command ends."""
    try:
        tidy()
    except KeyboardInterrupt:
        tidy()
        raise


@contextmanager
def _interrupted_after() -> Iterator[None]:
    """Let Ctrl-C wait until the block has ended; for a few quick steps that belong together."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        before(*came[0])


def end_open_blocks(error: BaseException | None) -> None:
    """Let every ``with`` block tidy up that Ctrl-C left between its body and its end.

    There Python lets go of a block without ending it; it would end with the last reference to it, which the traceback
    has, and at the end of the process perhaps never.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


@contextmanager
def full_disk_named() -> Iterator[None]:
    """Raise a full disk, or a file that may not grow, as the ``OSError`` that it is; some writers hide it."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            if f"os error {number}" in str(error) or os.strerror(number) in str(error):
                raise OSError(number, os.strerror(number)) from error
        raise


@contextmanager
def atomic_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside ``path`` that is renamed to it when the block ends without an error.

    An error, also Ctrl-C, removes the temporary folder. What a killed process left behind is removed by the
    next call for the same ``path``.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "cohort"
    >>> with atomic_folder(target) as folder:
    ...     _ = (folder / "a.txt").write_text("a")
    >>> [file.name for file in target.iterdir()]
    ['a.txt']
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not replace:
        raise PlmError(f"'{path}' exists already", remedy="choose another name or remove it")
    # A folder may be shared: what another machine is writing is left alone.
    prefix = f".{path.name}.{_machine()}-"
    for leftover in path.parent.glob(f"{glob.escape(prefix)}*.partial"):
        number = leftover.name.removeprefix(prefix).partition(".")[0]
        if leftover.is_dir() and not _is_process_alive(number):
            shutil.rmtree(leftover, ignore_errors=True)
    temporary = path.parent / f"{prefix}{os.getpid()}.partial"
    temporary.mkdir()
    retired = path.parent / f"{prefix}{os.getpid()}.retired.partial"
    dropped = path.parent / f"{prefix}{os.getpid()}.dropped.partial"

    def tidy() -> None:
        if retired.exists() and not path.exists():
            retired.rename(path)
        # Ctrl-C reaches the main thread alone: under another name the folder is out of reach of others that write on.
        if temporary.exists():
            shutil.rmtree(dropped, ignore_errors=True)
            temporary.rename(dropped)
        for old in (dropped, retired):
            shutil.rmtree(old, ignore_errors=True)

    try:
        with full_disk_named():
            yield temporary
        if path.exists():
            path.rename(retired)
        temporary.rename(path)
    finally:
        _surely(tidy)


def copy_folder(source: Path, target: Path, *, without: Container[str] = ()) -> None:
    """Copy the files below a folder, but none of these names and no temporary ones.

    The copying of the standard library gathers what went wrong in one error that no longer says "the disk is full".
    """
    for path in sorted(source.iterdir()):
        if path.name in without or path.name.endswith(".partial"):
            continue
        if path.is_dir():
            (target / path.name).mkdir(exist_ok=True)
            copy_folder(path, target / path.name, without=without)
        else:
            shutil.copy2(path, target / path.name)


def remove_leftovers(folder: Path) -> None:
    """Remove the parts of files and folders that a killed process left below a folder; for its only writer."""
    for leftover in list(folder.rglob(".*.partial")):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink(missing_ok=True)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder while the block runs; a second process that wants it is refused.

    The operating system gives the lock back when a process ends, however it ends. A folder that was made for the lock
    and stayed empty is removed again.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "run"
    >>> with only_writer(target):
    ...     [file.name for file in target.iterdir()]
    ['.lock']
    >>> target.exists()
    False
    """
    from filelock import FileLock, Timeout

    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, blocking=False, is_singleton=False, mode=0o600)

    def let_go() -> None:
        if not lock.is_locked:
            # Interrupted while it was taken, the file may be there without a holder; another's is left alone.
            with suppress(Timeout):
                lock.acquire()
        if lock.is_locked:
            (folder / LOCK).unlink(missing_ok=True)
            lock.release()
        if made and folder.exists() and not any(folder.iterdir()):
            folder.rmdir()

    try:
        try:
            # Interrupted between opening and keeping it, the file would be held by nobody who could let go of it.
            with _interrupted_after():
                lock.acquire()
        except Timeout:
            raise BusyError(
                f"another process is working on '{folder}'",
                remedy="wait until it has ended, or choose another name",
            ) from None
        yield
    finally:
        _surely(let_go)


@contextmanager
def waiting_writer(folder: Path) -> Iterator[None]:
    """Hold a lock *next to* a folder while the block runs; a second process waits until it is free.

    For short work that several coordinators may do at once, such as writing a plan. The folder itself may be replaced
    or removed in the block.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "plan"
    >>> with waiting_writer(target):
    ...     [file.name for file in target.parent.iterdir()]
    ['.plan.lock']
    """
    from filelock import FileLock

    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / f".{folder.name}.lock"
    with FileLock(path, is_singleton=False, mode=0o600):
        try:
            yield
        finally:
            # A process that waits for a file that is removed notices it and takes a new one.
            _surely(lambda: path.unlink(missing_ok=True))


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as indented JSON, atomically, with a final newline."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path, *, what: str) -> Any:
    """Read JSON; ``what`` names the thing in the error when it is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PlmError(f"no {what} at '{path}'", remedy="check the path") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise PlmError(
            f"the {what} '{path}' is not readable JSON ({error})", remedy="the file is damaged: make it again"
        ) from None


def sha256_of_file(path: Path, *, progress: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file's bytes as hexadecimal text, reading it in small pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            if progress is not None:
                progress(len(chunk))
    return digest.hexdigest()


def digest_of_file(path: Path) -> str:
    """Return a fast digest of a file's bytes (XXH3, 128 bits): it finds damage, it does not prove an origin."""
    from xxhash import xxh3_128

    digest = xxh3_128()
    # Pieces that stay in the processor's cache: larger ones cost more to provide than to read.
    with path.open("rb", buffering=0) as stream:
        while chunk := stream.read(1 << 17):
            digest.update(chunk)
    return digest.hexdigest()


def digests_below(folder: Path, *, without: Container[str] = ()) -> dict[str, str]:
    """Return the digest of every file below a folder by its path in it; hidden files are left out.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("a")
    >>> digests_below(folder)
    {'a.txt': 'a96faf705af16834e6c632b61e964e1f'}
    """
    names = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        name: digest_of_file(folder / name)
        for name in names
        if name not in without and not Path(name).name.startswith(".")
    }


def verify_files(folder: Path, digests: Mapping[str, str], *, what: str, remedy: str) -> None:
    """Refuse a folder in which one of these files is missing or has other content; ``what`` names the thing."""
    for name, digest in digests.items():
        try:
            found = digest_of_file(folder / name)
        except (FileNotFoundError, IsADirectoryError):
            raise _lacking(folder, name, what, remedy) from None
        if found != digest:
            raise _damaged(folder / name, what, remedy)


def verified_content(folder: Path, name: str, digest: str, *, what: str, remedy: str) -> bytes:
    """Return the content of a file that :func:`verify_files` would accept, read once."""
    from xxhash import xxh3_128_hexdigest

    try:
        content = (folder / name).read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        raise _lacking(folder, name, what, remedy) from None
    if xxh3_128_hexdigest(content) != digest:
        raise _damaged(folder / name, what, remedy)
    return content


def _lacking(folder: Path, name: str, what: str, remedy: str) -> PlmError:
    return PlmError(f"the {what} '{folder}' lacks its file '{name}'", remedy=remedy)


def _damaged(path: Path, what: str, remedy: str) -> PlmError:
    return PlmError(f"the file '{path}' is damaged: its content is not what was written for this {what}", remedy=remedy)


def digest_of_parts(parts: Iterable[tuple[str, bytes]]) -> str:
    """Return one digest of named pieces of memory, such as the arrays of a checkpoint, in the order of their names.

    >>> digest_of_parts([("b", b"2"), ("a", b"1")]) == digest_of_parts([("a", b"1"), ("b", b"2")])
    True
    """
    from xxhash import xxh3_128

    digest = xxh3_128()
    for name, content in sorted(parts, key=lambda part: part[0]):
        digest.update(f"{name} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return content for JSON with a digest of itself as ``seal``, which :func:`is_sealed` checks.

    >>> is_sealed(sealed({"a": 1})), is_sealed({**sealed({"a": 1}), "a": 2}), is_sealed({"a": 1})
    (True, False, False)
    """
    from xxhash import xxh3_128_hexdigest

    plain = {name: value for name, value in content.items() if name != "seal"}
    return {**plain, "seal": xxh3_128_hexdigest(json.dumps(plain, sort_keys=True).encode())}


def is_sealed(content: Any) -> bool:
    """Tell whether content is as it was sealed."""
    return isinstance(content, dict) and "seal" in content and sealed(content)["seal"] == content["seal"]


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _machine() -> str:
    """Return a short name of this machine that can stand in a file name."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:6]


def _is_process_alive(number: str) -> bool:
    """Tell whether the process of a number, which is in the name of a temporary file or folder, still runs."""
    if not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
