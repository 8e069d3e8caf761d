"""Only the very process that was started is ever stopped."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from localcluster import processes

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
STUBBORN = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); print(1); time.sleep(60)"]


@pytest.fixture
def record_file(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "records" / "it.json"
    yield file
    processes.stop(file, "it")


def start(command: list[str], record_file: Path) -> processes.Record:
    folder = record_file.parent
    return processes.start(command, record_file, folder / "it.log", "key", folder / "procs", os.environ)


def test_the_process_itself_writes_its_record_and_group(record_file: Path) -> None:
    record = start(SLEEPER, record_file)
    assert processes.alive(record)
    assert record.fingerprint == "key"
    assert (record_file.parent / "procs").read_text() == str(record.pid)


def test_stop_waits_until_it_is_gone(record_file: Path) -> None:
    record = start(SLEEPER, record_file)
    assert processes.stop(record_file, "it")
    assert not processes.alive(record)
    assert not record_file.exists()
    assert not processes.stop(record_file, "it")


def test_what_ignores_term_is_killed(record_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TERM_SECONDS", 0.2)
    record = start(STUBBORN, record_file)
    assert processes.stop(record_file, "it")
    assert not processes.alive(record)


@pytest.mark.parametrize("earlier", [True, False])
def test_a_reused_process_id_is_left_alone(record_file: Path, earlier: bool) -> None:
    record = start(SLEEPER, record_file)
    stale = replace(record, started=record.started - 1) if earlier else replace(record, boot="another boot")
    assert not processes.alive(stale)
    assert not processes._stop(stale, "it")
    assert processes.alive(record)


def test_a_torn_record_counts_as_none(tmp_path: Path) -> None:
    torn = tmp_path / "torn.json"
    torn.write_text('{"pid": 1')
    assert processes.read(torn) is None


def test_the_state_is_read_behind_a_name_with_parentheses() -> None:
    fields = " ".join(["S", *map(str, range(4, 22)), "777", "0"])
    assert processes.parse_stat(f"42 (a) b) {fields}") == ("S", 777)


def test_a_zombie_is_not_alive() -> None:
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        _, started = processes.parse_stat(Path(f"/proc/{child.pid}/stat").read_text())
        assert not processes.alive(processes.Record(child.pid, started, processes.boot_id(), ""))
