"""Starts and stops daemons by recorded process id and start time, so that no foreign process is ever signalled."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from localcluster.output import Failure

TERM_SECONDS = 15.0
KILL_SECONDS = 15.0


@dataclass(frozen=True)
class Record:
    """Identifies one process beyond the reuse of its id; `fingerprint` tells what it was started with."""

    pid: int
    started: int  # clock ticks since boot
    boot: str
    fingerprint: str


def parse_stat(text: str) -> tuple[str, int]:
    """(state, start time) of /proc/PID/stat; the command name in it may hold spaces and parentheses."""
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[19])


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def alive(record: Record) -> bool:
    """Whether exactly that process runs (a zombie does not)."""
    try:
        state, started = parse_stat(Path(f"/proc/{record.pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX" and started == record.started and record.boot == boot_id()


def read(path: Path) -> Record | None:
    """The record in a file, or None when there is none or it is torn."""
    try:
        return Record(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def start(
    command: Sequence[str],
    record_file: Path,
    log: Path,
    fingerprint: str,
    procs_file: Path,
    environment: Mapping[str, str],
) -> Record:
    """Starts a daemon in its own session and control group; the record exists before the program runs."""
    for path in (record_file, log):
        path.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_suffix(".log.1"))

    def before_exec() -> None:
        # In the child: whatever happens to us from here on, the daemon can be found again.
        procs_file.write_text(str(os.getpid()))
        _, started = parse_stat(Path("/proc/self/stat").read_text())
        record = Record(os.getpid(), started, boot_id(), fingerprint)
        temporary = record_file.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(record)))
        temporary.rename(record_file)

    with log.open("wb") as file:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=before_exec,
            cwd="/",
            env=dict(environment),
        )
    written = read(record_file)
    if written is None:
        raise Failure(f"{command[0]} was started but {record_file} was not written; check that the disk is not full")
    return written


def stop(record_file: Path, name: str) -> bool:
    """TERM, then KILL, and waits until the process is gone. False when it was not running."""
    record = read(record_file)
    was_running = record is not None and _stop(record, name)
    record_file.unlink(missing_ok=True)
    return was_running


def _stop(record: Record, name: str) -> bool:
    try:
        handle = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(record):  # checked after the handle was taken: from here on the id cannot change its owner
            return False
        for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            signal.pidfd_send_signal(handle, number)
            if select.select([handle], [], [], seconds)[0]:
                return True
        raise Failure(f"{name} (process {record.pid}) does not end on SIGKILL; look at /proc/{record.pid}/stack")
    finally:
        os.close(handle)
