"""Whatever is in the data or happens to the machine: a sentence, no traceback, no leftovers, nothing steers a terminal."""

from __future__ import annotations

import gzip
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_command import run_plm

from patients_like_me import cli

VISITS = "subject_id,visit_id,admission_time,discharge_time,insurance,site\n" + "".join(
    f"p{n // 2},v{n},2150-{1 + n % 12:02}-01 10:00:00,2150-{1 + n % 12:02}-0{3 + n % 5} 10:00:00,x[/red]y,\x1b]0;a\x07\n"
    for n in range(40)
)
EVENTS = "visit_id,kind,code\n" + "".join(f"v{n},diagnosis/own,[/b]{n % 3}\x1b[31m\n" for n in range(40))
LABELS = "visit_id,task,value\n" + "".join(f"v{n},kind,{'[/red]a' if n // 2 % 2 else '=cmd'}\n" for n in range(40))


def plm(*words: str | Path, **options: object) -> Any:
    """Run a command, in a process of its own only where that is asked for by options of the process."""
    if not options:
        return run_plm(*words)
    command = [sys.executable, "-m", "patients_like_me", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "a[/red]b"
    folder.mkdir(parents=True)
    for name, text in {"visits": VISITS, "events": EVENTS, "labels": LABELS}.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def test_markup_and_control_characters_of_the_data_reach_no_terminal(own: Path) -> None:
    cohort = own.parent / "c[/b]d"
    cohort.parent.mkdir()
    for words in (
        ("prepare", "tables", own, "--out", cohort),
        ("audit", cohort, "--task", "kind"),
        ("task", "show", "kind", "--cohort", cohort),
        ("show", cohort, "--task", "kind"),
        ("audit", own / "x[/red]y", "--task", "kind"),
    ):
        done = plm(*words)
        assert "Traceback" not in done.stderr, done.stderr
        assert "\x1b" not in done.stdout + done.stderr
        assert done.returncode == (2 if words[1] == own / "x[/red]y" else 0), done.stderr
    page = (cohort / "audit" / "kind.html").read_text()
    assert "\x1b" not in page


def test_a_field_that_tells_the_label_ends_the_audit_with_exit_code_1(own: Path) -> None:
    lines = VISITS.splitlines()
    told = [lines[0], *(line.replace("x[/red]y", f"plan {n // 2 % 2}") for n, line in enumerate(lines[1:]))]
    (own / "visits.csv").write_text("\n".join(told) + "\n")
    cohort = own.parent / "cohort"
    assert plm("prepare", "tables", own, "--out", cohort).returncode == 0
    done = plm("audit", cohort, "--task", "kind")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "insurance: 1.000; 1 is perfect, 0.5 is chance, 0.99 or more is a leak" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("error", "command", "words"),
    [
        (MemoryError("Unable to allocate 37.3 GiB for an array with shape (68801, 68801)"), "train",
         ("37.3 GiB more were asked for", "batch_size", "plm plan")),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 21474836480 bytes."), "tune",
         ("20.0 GiB more were asked for", "graph.max_neighbors")),
        (MemoryError(), "prepare", ("GiB are free, and plm has used", "POLARS_MAX_THREADS=1")),
        (MemoryError(), "evaluate", ("GiB are free, and plm has used", "use a machine with more memory")),
    ],
)  # fmt: skip
def test_what_does_not_fit_into_memory_is_said_in_numbers(
    error: MemoryError | RuntimeError,
    command: str,
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "with_named_values", lambda _: fails)
    monkeypatch.setattr(sys, "argv", ["plm", command])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    said = capsys.readouterr().err
    assert all(word in said for word in words), said
    assert re.search(r"[\d.]+ of [\d.]+ GiB are free", said)


def limited(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("size", [100, 1500, 3000])
def test_files_that_may_not_grow_end_in_a_sentence(own: Path, size: int) -> None:
    cohort = own.parent / "cohort"
    done = plm("prepare", "tables", own, "--out", cohort, preexec_fn=lambda: limited(size))
    assert done.returncode == 2, done.stderr
    assert "file too large; files may not grow so large here" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in own.parent.iterdir()) == [own.name]


@pytest.mark.parametrize("damage", ["cut", "crc"])
@pytest.mark.parametrize("table", ["visits", "events", "labels"])
def test_a_damaged_gzip_of_a_small_table_ends_in_a_sentence(own: Path, table: str, damage: str) -> None:
    path = own / f"{table}.csv"
    packed = gzip.compress(path.read_bytes())
    path.unlink()
    (own / f"{table}.csv.gz").write_bytes(packed[:-12] if damage == "cut" else packed[:-8] + b"abcd" + packed[-4:])
    done = plm("prepare", "tables", own, "--out", own.parent / "cohort")
    assert done.returncode == 2
    assert f"{table}.csv.gz' ends too early or is not whole gzip data" in done.stderr


def test_an_unclosed_quote_shows_no_row(own: Path) -> None:
    text = (own / "visits.csv").read_text()
    (own / "visits.csv").write_text(text.replace("x[/red]y", '"secret', 1))
    done = plm("prepare", "tables", own, "--out", own.parent / "cohort")
    assert done.returncode == 2
    assert "visits.csv' has a quote that is opened and never closed" in done.stderr
    assert "secret" not in done.stderr
    assert "2150" not in done.stderr


@pytest.mark.parametrize("days", ["1e308", "inf", "-1"])
def test_a_stay_that_nobody_has_is_refused(own: Path, days: str) -> None:
    (own / "labels.csv").write_text(f"visit_id,task,value\nv1,length_of_stay,{days}\n")
    assert plm("prepare", "tables", own, "--out", own.parent / "cohort").returncode == 0
    done = plm("audit", own.parent / "cohort", "--task", "length_of_stay")
    assert done.returncode == 2
    assert "where a number of days from 0 to 36,500 is expected" in done.stderr


@pytest.mark.parametrize("after", [0.05, 0.3, None])
def test_ctrl_c_ends_in_a_sentence(tmp_path: Path, after: float | None) -> None:
    """Interrupt a preparation that has much to read: early, or as soon as it has a folder to write into."""
    source = tmp_path / "own"
    source.mkdir()
    (source / "visits.csv").write_text(VISITS)
    rows = EVENTS.splitlines()
    (source / "events.csv").write_text("\n".join([rows[0], *rows[1:] * 40_000]) + "\n")
    command = [sys.executable, "-m", "patients_like_me", "prepare", "tables", str(source), "--out", str(tmp_path / "c")]
    # A shell's background jobs ignore the signal; this one must not.
    started = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    began = time.monotonic()
    while time.monotonic() < began + (60 if after is None else after):
        if after is None and list(tmp_path.glob(".c.*")):
            break
        time.sleep(0.005)
    os.kill(started.pid, signal.SIGINT)
    _, error = started.communicate(timeout=120)
    assert not list(tmp_path.glob(".c.*"))
    assert not (tmp_path / "c").exists()
    # Before the first line of this package runs, Python ends by itself: silently, or with a traceback of its own start.
    package = str(Path(cli.__file__).parents[1])
    assert "Traceback" not in error or package not in error, error
    if "Traceback" in error or not error:
        assert started.returncode in (130, -signal.SIGINT, 1), error
        if after > 0.1:
            pytest.skip("the machine is too busy: Python itself had not started when it was interrupted")
        return
    # A shell reports 130 for both.
    assert started.returncode in (130, -signal.SIGINT), error
    assert "plm: stopped" in error


def test_an_interruption_while_python_cleans_up_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    from patients_like_me.__main__ import deliver_again

    class Cleaned:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "unraisablehook", deliver_again)
    # A job in the background of a shell ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Cleaned()
            time.sleep(30)
    finally:
        signal.signal(signal.SIGINT, before)
