"""A small fixed number of attacks in every test run; ``make attack`` draws new ones for as long as it is told."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attack import setting_words, shares
from attack.flips import FlipAttack
from attack.forms import FormAttack
from attack.injections import InjectionAttack
from attack.kills import KillAttack
from attack.outcome import TOO_LONG, Counts, Told, judge
from attack.setting_words import SettingAttack, is_kept
from attack.stage import Stage
from attack.tables import MUTATIONS, Mutation, TableAttack, _on_lines


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    room = tmp_path_factory.mktemp("attack")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLM_CODES", str(room / "codes"))
        yield Stage.built(room)


@pytest.fixture(scope="module")
def tables(stage: Stage) -> TableAttack:
    return TableAttack(stage.room / "tables")


def faults(counts: Counts) -> list[str]:
    return counts.stories


@pytest.mark.parametrize("number", range(len(MUTATIONS)), ids=lambda number: MUTATIONS[number].name)
def test_every_mutation_of_a_table(tables: TableAttack, number: int) -> None:
    counts = Counts()
    assert tables.attack(number, counts, MUTATIONS[number]) != "unchanged"
    assert counts.inputs == 1
    assert faults(counts) == []


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_drawn_tables(tables: TableAttack, seed: int) -> None:
    counts = Counts()
    tables.attack(seed, counts)
    assert faults(counts) == []


def test_what_changes_nothing_is_no_input(tables: TableAttack) -> None:
    counts = Counts()
    assert tables.attack(0, counts, Mutation("the same again", _on_lines(lambda lines, draw: lines))) == "unchanged"
    assert counts.inputs == 0


def test_drawn_forms(stage: Stage) -> None:
    counts, attack = Counts(), FormAttack(stage.room / "forms")
    outcomes = {attack.attack(seed, counts) for seed in range(12)}
    assert faults(counts) == []
    assert outcomes >= {"equal", "refused"}
    assert counts.inputs == 12


def test_drawn_settings(stage: Stage) -> None:
    counts, attack = Counts(), SettingAttack(stage)
    outcomes = [attack.attack(seed, counts, seconds=4) for seed in range(9, 24)]
    assert faults(counts) == []
    assert counts.settings == len(outcomes) - outcomes.count("too long")
    assert "refused" in outcomes


def test_a_setting_that_ends_in_no_known_way_is_a_fault_and_one_that_takes_long_none(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code, expected in ((1, (1, 1, 0)), (3, (1, 1, 0)), (TOO_LONG, (0, 0, 1)), (2, (0, 1, 0))):
        counts = Counts()
        monkeypatch.setattr(setting_words, "plm", lambda *words, seconds, code=code: Told(code, "x"))
        SettingAttack(stage).attack(0, counts)
        assert (counts.tracebacks, counts.settings, counts.settings_too_long) == expected


def test_drawn_damage(stage: Stage) -> None:
    counts, attack = Counts(), FlipAttack(stage)
    for seed, target in enumerate(
        ["cohort"] * 6 + ["logistic"] * 4 + ["plm"] * 3 + ["bank", "bank", "codes", "codes", "checkpoint", "cache"]
    ):
        attack.attack(seed, counts, target)
    assert faults(counts) == []


def test_drawn_injections(stage: Stage) -> None:
    counts, attack = Counts(), InjectionAttack(stage)
    for seed in (7, 18):
        assert attack.attack(seed, counts) == "accepted"
    assert faults(counts) == []


def test_drawn_kills(stage: Stage) -> None:
    counts = Counts()
    jobs = ["prepare", "prepare again", "train logistic", "predict", "bank add"]
    jobs += ["experiment of one row", "train two_stage", "hidden-state cache"]
    with KillAttack(stage).serving() as attack:
        for seed, name in enumerate(jobs):
            attack.attack(seed, counts, name)
    assert counts.kills == len(jobs)
    assert faults(counts) == []


def test_faults_are_counted(tmp_path: Path) -> None:
    counts = Counts()
    judge(counts, Told(1, "", "Traceback"), "a crash")
    (tmp_path / ".run.json.x.partial").touch()
    judge(counts, Told(2, "plm: the patient pat1007 is odd"), "an id", folder=tmp_path)
    found = json.loads(counts.line())
    assert [found[name] for name in ("tracebacks", "ids_shown", "leftovers", "silent_changes")] == [1, 1, 1, 0]
    judge(counts, Told(3, "no reason"), "an end that is none")
    assert counts.tracebacks == 2
    assert not is_kept(True, 1)
    assert is_kept(3.0, 3)


def test_a_change_without_a_word_is_silent(tables: TableAttack) -> None:
    """A mutation that nobody can see, declared as one that can be seen."""
    counts = Counts()
    less = Mutation("a row less", _on_lines(lambda lines, draw: lines[:-1] if "kind" in lines[0] else lines))
    for seed in range(40):
        tables.attack(seed, counts, less)
        if counts.silent_changes:
            break
    assert counts.silent_changes == 1


def test_workers_attack_with_seeds_of_their_own_and_their_counts_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def attacked(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        wrong = len(asked) == 2
        counts = json.dumps({"inputs": 3, "kills": len(asked)})
        return subprocess.CompletedProcess(command, int(wrong), f"{counts}\n", "a story" if wrong else "")

    monkeypatch.setattr(shares.subprocess, "run", attacked)
    with ThreadPoolExecutor(1) as executor:
        line, stories = shares.attack_in_workers(tmp_path, executor, 3, 0.1, seed=7)
    assert json.loads(line) == {"inputs": 9, "kills": 6}
    assert stories == ["a story"]
    assert [command[-1] for command in asked] == ["7", str(7 + shares.APART), str(7 + 2 * shares.APART)]
