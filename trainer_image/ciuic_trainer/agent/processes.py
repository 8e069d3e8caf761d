"""Ranks as processes: start, watch, end them with everything they left behind. Used by `runtime`.

The agent is the pod's process 1 (and a subreaper where it is not), so whatever a rank leaves behind becomes its child:
left over is every process whose parent chain ends at the agent.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

PR_SET_CHILD_SUBREAPER = 36
PR_SET_THP_DISABLE = 41
LINES_KEPT = 200
LINE_BYTES = 8192

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def become_subreaper() -> None:
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def disable_transparent_huge_pages() -> None:
    """For this process and, by inheritance over fork and exec, for every rank."""
    prctl(PR_SET_THP_DISABLE, 1)


@dataclass
class Rank:
    rank: int
    pid: int
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_KEPT))
    exit_code: int | None = None
    ended_at: float | None = None
    """Of the monotonic clock."""
    reader: threading.Thread | None = None


def start_rank(rank: int, command: Sequence[str], environ: Mapping[str, str]) -> Rank:
    """The one place where a rank comes to life. Its output goes to the agent's, each line with the rank before it."""
    process = subprocess.Popen(
        list(command),
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    # Reaping is done in one place (`Ranks.reap`): the Popen object must not wait for the child itself.
    process.returncode = 0
    started = Rank(rank=rank, pid=process.pid)
    assert process.stdout is not None
    started.reader = threading.Thread(target=_relay, args=(process.stdout, started), name=f"rank {rank}", daemon=True)
    started.reader.start()
    return started


def _relay(stream: IO[bytes], rank: Rank) -> None:
    prefix = f"[rank {rank.rank}] "
    while line := stream.readline(LINE_BYTES):
        text = line.decode(errors="replace").rstrip("\n")
        rank.lines.append(text)
        sys.stdout.write(f"{prefix}{text}\n")
        sys.stdout.flush()


@dataclass
class Ranks:
    """The processes of one attempt in this pod."""

    members: dict[int, Rank] = field(default_factory=dict)
    """By rank."""
    own: set[int] = field(default_factory=set)
    """Children of the agent that are not ranks."""

    def alive(self) -> int:
        return sum(rank.exit_code is None for rank in self.members.values())

    def reap(self, now: float) -> list[Rank]:
        """Collect every child that has ended; those that are ranks are returned."""
        ended = []
        by_pid = {rank.pid: rank for rank in self.members.values() if rank.exit_code is None}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            rank = by_pid.get(pid)
            if rank is not None:
                rank.exit_code, rank.ended_at = os.waitstatus_to_exitcode(status), now
                ended.append(rank)
        return ended

    def left_over(self) -> list[int]:
        """Processes below the agent that are neither its own nor living ranks."""
        ranks = {rank.pid for rank in self.members.values() if rank.exit_code is None}
        return [pid for pid in descendants(os.getpid()) if pid not in ranks and pid not in self.own]

    def signal(self, number: int) -> None:
        """To each living rank's whole process group."""
        for rank in self.members.values():
            if rank.exit_code is None:
                _quietly(lambda pid=rank.pid: os.killpg(pid, number))  # type: ignore[misc]

    def kill(self) -> None:
        """SIGKILL to all ranks and all they left behind, whatever session they are in."""
        self.signal(signal.SIGKILL)
        for pid in self.left_over():
            _quietly(lambda pid=pid: os.kill(pid, signal.SIGKILL))  # type: ignore[misc]


def _quietly(kill: Callable[[], None]) -> None:
    try:
        kill()
    except ProcessLookupError:
        return  # it ended by itself in between


def descendants(root: int) -> list[int]:
    """Living processes whose parent chain ends at `root`; zombies are not counted."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                text = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            state, parent = text.rsplit(")", 1)[1].split()[:2]
            if state not in ("Z", "X"):
                parents[int(entry.name)] = int(parent)
    found = []
    for pid in parents:
        current = pid
        while current in parents and current != root:
            current = parents[current]
        if current == root and pid != root:
            found.append(pid)
    return found
