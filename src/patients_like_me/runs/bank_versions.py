"""The versions of a run's bank: which additions each has, and the one pointer that says which is in use.

==================================  ==================================================================================
``bank/current.json``               the pointer: the number of the version in use, and a digest of its record
``bank/versions/0003/``             one version: ``version.json`` (its record), predictions of validation and test with
                                    this bank, the patient graph of systems that have one, and a card
``bank/additions/0002/``            instances that were added together: what the system keeps of them, and the part of
                                    their records that pages show (:mod:`.added_records`)
==================================  ==================================================================================

Version 0 is the bank as it was trained and has no files here. An addition and a version are written once, under a
temporary name, and never changed. Only then is the pointer replaced, in one step: a process that is killed at any
moment leaves the old bank or the new one. What it left unused is removed by the next writer. A reader follows the
pointer once and stays with that version; the version before the current one is kept whole for those who still read it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from patients_like_me import __version__
from patients_like_me.errors import PlmError
from patients_like_me.files import (
    atomic_folder,
    digest_of_file,
    digests_below,
    is_sealed,
    read_json,
    remove_leftovers,
    sealed,
    verify_files,
    write_json,
)

FORMAT: Final = 1
BANK: Final = "bank"
POINTER: Final = "current.json"
VERSIONS: Final = "versions"
ADDITIONS: Final = "additions"
RECORD: Final = "version.json"
_REMEDY: Final = "restore the run folder from a copy"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AdditionRecord(_Part):
    """Where the instances of one addition come from; counts and dates, no patient's data."""

    number: int = Field(ge=1)
    added: datetime = Field(description="when they joined the bank (UTC)")
    instances: int
    patients: int
    cohort: str = Field(description="hash of the cohort")
    source: str = Field(description="the reader of its records")
    unordered: str = Field("", description="why the times of a patient's visits cannot be compared, where that is so")
    first: datetime | None = Field(None, description="earliest time of prediction among them")
    last: datetime | None = Field(None, description="latest time of prediction among them")
    remark: str = Field("", description="the user's own words")
    notes: tuple[str, ...] = Field((), description="what was left out, and what should be known")
    package: str = __version__
    digests: dict[str, str] = Field(default_factory=dict, description="a digest of each of its files")


class VersionRecord(_Part):
    """What one version of the bank is, and how it came about."""

    format: Literal[1] = FORMAT
    number: int = Field(ge=1)
    made: datetime
    action: Literal["add", "drop"]
    changed: tuple[int, ...] = Field(description="the additions that this version added or dropped")
    references: int = Field(description="instances in the bank, those of the training included")
    trained: int = Field(description="how many of them are of the training")
    additions: tuple[AdditionRecord, ...] = Field(description="all additions that are in the bank")
    scores: dict[str, dict[str, float | None]] = Field(description="metrics of validation and test with this bank")
    digests: dict[str, str] = Field(default_factory=dict, description="a digest of each file of the version")

    @property
    def added_instances(self) -> int:
        """How many instances were added since the training and are in the bank."""
        return sum(addition.instances for addition in self.additions)

    @property
    def words(self) -> str:
        """What this version changed, in one sentence part."""
        named = "addition" if len(self.changed) == 1 else "additions"
        numbers = ", ".join(str(number) for number in self.changed)
        return f"{named} {numbers} {'joined the bank' if self.action == 'add' else 'left the bank'}"


@dataclass(frozen=True)
class BankVersion:
    """One version of the bank of a run folder; ``folder`` is that of the run."""

    folder: Path
    record: VersionRecord
    #: A version that is being made: its files are here until it is published.
    draft: Path | None = field(default=None, compare=False)

    @property
    def place(self) -> Path:
        """The folder of the version."""
        return self.draft or self.folder / BANK / VERSIONS / named(self.record.number)

    def addition_folder(self, number: int) -> Path:
        """Return the folder of an addition."""
        return addition_folder(self.folder, number)

    def verify(self, name: str) -> Path:
        """Return a file of the version, or all below a folder that ends in a slash, if it is as it was written."""
        wanted = {
            file: digest
            for file, digest in self.record.digests.items()
            if file == name or (name.endswith("/") and file.startswith(name))
        }
        verify_files(self.place, wanted, what="version of the bank", remedy=f"open the run again, or {_REMEDY}")
        return self.place / name.rstrip("/")

    def has(self, name: str) -> bool:
        """Tell whether the version has a file, or a folder that ends in a slash."""
        return any(file == name or (name.endswith("/") and file.startswith(name)) for file in self.record.digests)


def named(number: int) -> str:
    """Return the name of a version's or an addition's folder.

    >>> named(3)
    '0003'
    """
    return f"{number:04d}"


def addition_folder(run_folder: Path, number: int) -> Path:
    """Return the folder of an addition."""
    return run_folder / BANK / ADDITIONS / named(number)


def current_number(run_folder: Path) -> int:
    """Return the number of the version in use, 0 for the bank as it was trained."""
    return int(_pointer(run_folder).get("version", 0))


def read_version(run_folder: Path) -> BankVersion | None:
    """Return the version in use; None for the bank as it was trained."""
    pointer = _pointer(run_folder)
    if not pointer.get("version"):
        return None
    record = _read_record(run_folder, int(pointer["version"]))
    if digest_of_file(_record_file(run_folder, record.number)) != pointer["record"]:
        raise _damaged(_record_file(run_folder, record.number))
    return BankVersion(run_folder, record)


def history(run_folder: Path) -> tuple[VersionRecord, ...]:
    """Return every version up to the one in use, the first change first."""
    return tuple(_read_record(run_folder, number) for number in range(1, current_number(run_folder) + 1))


@contextmanager
def drafted(version: BankVersion) -> Iterator[BankVersion]:
    """Yield the version as a draft in a folder of its own, which becomes that of the version when the block ends.

    What the block wrote there belongs to the version. It is not in use yet: see :func:`publish`.
    """
    place = version.folder / BANK / VERSIONS / named(version.record.number)
    if not _pointer(version.folder):
        # Before the first version is there, so that versions without a pointer are known for what they are: a loss.
        _point_to(version.folder, 0, "")
    with atomic_folder(place) as temporary:
        yield BankVersion(version.folder, version.record, temporary)


def write_record(draft: BankVersion, scores: dict[str, dict[str, float | None]]) -> None:
    """Write the record of a drafted version, with a digest of every file that was written for it."""
    record = draft.record.model_copy(
        update={"scores": scores, "digests": digests_below(draft.place, without=(RECORD,))}
    )
    write_json(draft.place / RECORD, sealed(record.model_dump(mode="json")))


def publish(run_folder: Path, number: int) -> BankVersion:
    """Put a whole version into use: the pointer is replaced in one step."""
    _point_to(run_folder, number, digest_of_file(_record_file(run_folder, number)))
    found = read_version(run_folder)
    assert found is not None
    return found


def tidy(run_folder: Path) -> None:
    """Remove what no version has: parts that a killed process left, and files of versions that nobody reads any more.

    Records of all versions stay: they are the history. For the only writer of the run folder.
    """
    bank = run_folder / BANK
    if not bank.is_dir():
        return
    for place in (bank / VERSIONS, bank / ADDITIONS):
        if place.is_dir():
            remove_leftovers(place)
    current = current_number(run_folder)
    known = {addition.number for record in history(run_folder) for addition in record.additions}
    for folder in _numbered(bank / VERSIONS):
        if int(folder.name) > current:
            shutil.rmtree(folder)
        elif int(folder.name) < current - 1:
            _leave_only(folder, RECORD)
    for folder in _numbered(bank / ADDITIONS):
        if int(folder.name) not in known:
            shutil.rmtree(folder)


def erase(run_folder: Path, numbers: tuple[int, ...]) -> None:
    """Remove the records of additions that are in use no more, and what earlier versions derived from them."""
    current = current_number(run_folder)
    for number in numbers:
        shutil.rmtree(addition_folder(run_folder, number), ignore_errors=True)
    for folder in _numbered(run_folder / BANK / VERSIONS):
        if int(folder.name) < current:
            _leave_only(folder, RECORD)


def records_out_of_use(run_folder: Path) -> tuple[int, ...]:
    """Return the additions that left the bank and whose records are in the run folder still."""
    version = read_version(run_folder)
    used = set() if version is None else {addition.number for addition in version.record.additions}
    return tuple(int(each.name) for each in _numbered(run_folder / BANK / ADDITIONS) if int(each.name) not in used)


def next_addition(run_folder: Path) -> int:
    """Return the number for the next addition; a number is never used twice."""
    return 1 + max(
        (addition.number for record in history(run_folder) for addition in record.additions),
        default=0,
    )


def now() -> datetime:
    """Return the time as it is kept."""
    return datetime.now(UTC).replace(microsecond=0)


def _numbered(place: Path) -> list[Path]:
    return [folder for folder in sorted(place.glob("*")) if folder.is_dir() and folder.name.isdigit()]


def _leave_only(folder: Path, name: str) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != name:
            path.unlink()


def _record_file(run_folder: Path, number: int) -> Path:
    return run_folder / BANK / VERSIONS / named(number) / RECORD


def _point_to(run_folder: Path, number: int, digest: str) -> None:
    write_json(run_folder / BANK / POINTER, sealed({"format": FORMAT, "version": number, "record": digest}))


def _pointer(run_folder: Path) -> dict[str, Any]:
    path = run_folder / BANK / POINTER
    if not path.is_file():
        # Taken for the bank as it was trained, the next writer would remove what was added.
        if path.is_symlink() or path.exists() or _numbered(run_folder / BANK / VERSIONS):
            raise PlmError(f"the file '{path}', which says what version of the bank is in use, is gone", remedy=_REMEDY)
        return {}
    content = read_json(path, what="pointer to the bank")
    if not is_sealed(content) or content.get("format") != FORMAT:
        raise _damaged(path)
    return dict(content)


def _read_record(run_folder: Path, number: int) -> VersionRecord:
    path = _record_file(run_folder, number)
    content = read_json(path, what="version of the bank")
    if not is_sealed(content):
        raise _damaged(path)
    try:
        record = VersionRecord.model_validate({name: value for name, value in content.items() if name != "seal"})
    except ValidationError:
        raise _damaged(path) from None
    if record.number != number:
        raise _damaged(path)
    return record


def _damaged(path: Path) -> PlmError:
    return PlmError(f"the file '{path}' is damaged: its content is not what was written", remedy=_REMEDY)
