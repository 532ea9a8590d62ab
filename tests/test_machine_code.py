"""Machine code that is kept: the same answers as the plain function, without numba in the second process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from patients_like_me.kept import kept
from patients_like_me.machine_code import loop

#: A file of loops of its own, which the two processes below compile and load.
LOOPS = """
from __future__ import annotations
import sys
import numpy as np
import numpy.typing as npt
from patients_like_me.machine_code import loop

@loop
def sum_of(values: npt.NDArray[np.int64], length: int) -> int:
    total = 0
    for place in range(length):
        total += values[place]
    return total

@loop
def doubled(values: npt.NDArray[np.uint32], length: int) -> int:
    for place in range(length):
        values[place] *= np.uint32(2)
    return length

numbers = np.arange(5, dtype=np.uint32)
doubled(numbers, 5)
print(sum_of(np.arange(5), 5), numbers.tolist(), "numba" in sys.modules)
"""


def test_the_second_process_needs_no_numba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLM_KEPT", str(tmp_path / "kept"))
    script = tmp_path / "loops.py"
    script.write_text(LOOPS)

    def answer() -> str:
        return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout.strip()

    assert answer() == "10 [0, 2, 4, 6, 8] True"
    assert answer() == "10 [0, 2, 4, 6, 8] False"
    (code,) = (tmp_path / "kept").iterdir()
    content = code.read_bytes()
    code.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert answer() == "10 [0, 2, 4, 6, 8] True", "damaged code must not be run"
    assert code.read_bytes() == content


def test_arrays_that_would_be_read_wrongly_are_refused() -> None:
    @loop
    def length_of(values: npt.NDArray[np.int64], length: int) -> int:
        return length

    length_of.take(0)
    for wrong in (np.zeros(4, dtype=np.int32), np.zeros(8, dtype=np.int64)[::2], [1, 2]):
        with pytest.raises(TypeError, match="takes an array of int64 without gaps, not"):
            length_of(wrong, 4)


def test_a_loop_that_can_fail_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLM_KEPT", str(tmp_path / "kept"))

    @loop
    def failing(values: npt.NDArray[np.int64], length: int) -> int:
        if values[0] == 0:
            raise ValueError
        return length

    with pytest.raises(TypeError, match="the loop 'failing' can fail"):
        failing(np.ones(1, dtype=np.int64), 1)


def test_what_cannot_be_kept_is_made_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PLM_KEPT", str(tmp_path / "file" / "kept"))
    assert kept("a.txt", ["x"], lambda: b"one") == b"one"
    assert kept("a.txt", ["x"], lambda: b"two") == b"two"
