"""Ranks as processes: start, watch, end them with everything they left behind. Used by `runtime`.

The agent is the pod's process 1 (and a subreaper where it is not), so whatever a rank leaves behind becomes its child:
left over is every process whose parent chain ends at the agent. What `kubectl exec` starts is not: its chain ends
outside the pod.
"""

import ctypes
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from .forking import CannotFork, ForkServer
from .output import say, write_line

PR_SET_CHILD_SUBREAPER = 36
PR_SET_THP_DISABLE = 41
LINES_KEPT = 200
LINE_BYTES = 8192
OUTPUT_SECONDS = 0.3
"""How long the end of a rank waits for its last lines, which say why. A process it left behind may hold them open."""
NOT_FOUND_EXIT_CODE, NOT_STARTED_EXIT_CODE = 127, 126
"""As shells say it."""
SCANS = 5

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
    pid: int | None
    """None: it could not be started."""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_KEPT))
    reaped_code: int | None = None
    """The process has ended; its output may still be read."""
    ended_at: float | None = None
    """Of the monotonic clock."""
    exit_code: int | None = None
    """The process has ended and its output is complete: from here on the rank's end is told."""
    terminated: bool = False
    reader: threading.Thread | None = None

    @property
    def running_pid(self) -> int | None:
        """Its process's id, which cannot be another's as long as it is not reaped."""
        return self.pid if self.reaped_code is None else None


def start_rank(
    rank: int,
    command: Sequence[str],
    environ: Mapping[str, str],
    fork_server: ForkServer | None,
    output_ended: Callable[[], None],
) -> Rank:
    """The one place where a rank comes to life. Its output goes to the agent's, each line with the rank before it.

    `output_ended` is called from another thread. A command that can not be started is a rank that ended at once.
    """
    reader, writer = os.pipe()
    started = Rank(rank=rank, pid=None)
    try:
        started.pid = _forked_or_executed(rank, command, environ, fork_server, writer)
    except (OSError, ValueError) as error:
        os.close(reader)
        started.reaped_code = NOT_FOUND_EXIT_CODE if isinstance(error, FileNotFoundError) else NOT_STARTED_EXIT_CODE
        line = f"{command[0]} can not be started: {error}"
        started.lines.append(line)
        write_line(f"[rank {rank}] {line}".encode(errors="replace"))
        return started
    finally:
        os.close(writer)
    arguments = (os.fdopen(reader, "rb"), started, output_ended)
    started.reader = threading.Thread(target=_relay, args=arguments, name=f"rank {rank}", daemon=True)
    started.reader.start()
    return started


def _forked_or_executed(
    rank: int, command: Sequence[str], environ: Mapping[str, str], fork_server: ForkServer | None, output: int
) -> int:
    if fork_server is not None:
        try:
            return fork_server.fork(f"rank-{rank:05d}", command, environ, output)
        except CannotFork as error:
            say(f"rank {rank} is started by exec: {error}")
    process = subprocess.Popen(
        list(command),
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    # Reaping is done in one place (`Ranks.reap`): the Popen object must not wait for the child itself.
    process.returncode = 0
    return process.pid


def _relay(stream: IO[bytes], rank: Rank, output_ended: Callable[[], None]) -> None:
    prefix = f"[rank {rank.rank}] ".encode()
    with stream:
        while line := stream.readline(LINE_BYTES):
            line = line.removesuffix(b"\n")
            rank.lines.append(line.decode(errors="replace"))
            write_line(prefix + line)
    output_ended()


@dataclass
class Ranks:
    """The processes of one attempt in this pod."""

    members: dict[int, Rank] = field(default_factory=dict)
    """By rank."""
    fork_server: ForkServer | None = None
    """Below the agent too, but nothing that a rank left behind."""

    def start(
        self, rank: int, command: Sequence[str], environ: Mapping[str, str], output_ended: Callable[[], None]
    ) -> None:
        self.members[rank] = start_rank(rank, command, environ, self.fork_server, output_ended)

    def alive(self) -> int:
        return sum(rank.exit_code is None for rank in self.members.values())

    def ending(self) -> bool:
        """The output of some rank that has ended is still being read."""
        return any(rank.exit_code is None and rank.reaped_code is not None for rank in self.members.values())

    def reap(self, now: float) -> list[Rank]:
        """Collect every child that has ended; ranks whose end can be told from now on are returned."""
        by_pid = {pid: rank for rank in self.members.values() if (pid := rank.running_pid) is not None}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            rank = by_pid.get(pid)
            if rank is not None:
                rank.reaped_code, rank.ended_at = os.waitstatus_to_exitcode(status), now
            elif self.fork_server is not None and pid == self.fork_server.pid:
                self.fork_server.reaped()
        ended = []
        for rank in self.members.values():
            if rank.exit_code is not None or rank.reaped_code is None:
                continue
            rank.ended_at = now if rank.ended_at is None else rank.ended_at
            reading = rank.reader is not None and rank.reader.is_alive()
            if not reading or now - rank.ended_at > OUTPUT_SECONDS:
                rank.exit_code = rank.reaped_code
                ended.append(rank)
        return ended

    def left_over(self) -> list[int]:
        """Processes below the agent that are not living ranks."""
        known = {rank.running_pid for rank in self.members.values()}
        if self.fork_server is not None:
            known.add(self.fork_server.pid)
        return [pid for pid in descendants(os.getpid()) if pid not in known]

    def terminate(self) -> None:
        """SIGTERM to each living rank's process group, once: to many programs a second one means haste."""
        for rank in self.members.values():
            if rank.running_pid is not None and not rank.terminated:
                rank.terminated = True
                _signal_group(rank.running_pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to all ranks and all they left behind, whatever session they are in."""
        for rank in self.members.values():
            if rank.running_pid is not None:
                _signal_group(rank.running_pid, signal.SIGKILL)
        for pid in self.left_over():
            _signal(pid, signal.SIGKILL)


def _signal_group(leader: int, number: int) -> None:
    _quietly(lambda: os.killpg(leader, number))


def _signal(pid: int, number: int) -> None:
    _quietly(lambda: os.kill(pid, number))


def _quietly(kill: Callable[[], None]) -> None:
    """It may have ended by itself in between, or belong to another user: then it remains, and that is reported."""
    try:
        kill()
    except (ProcessLookupError, PermissionError):
        return


def descendants(root: int) -> list[int]:
    """Living processes whose parent chain ends at `root`; zombies are not counted."""
    for _ in range(SCANS):
        parents, living = _scan()
        found, torn = _below(root, parents, living)
        if not torn:
            break
    return found


def _scan() -> tuple[dict[int, int], set[int]]:
    """The parent of each process, and which of them live."""
    parents: dict[int, int] = {}
    living: set[int] = set()
    for name in os.listdir("/proc"):  # noqa: PTH208 - called often
        if name.isdecimal():
            try:
                text = Path("/proc", name, "stat").read_text(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            state, parent = text.rsplit(")", 1)[1].split()[:2]
            parents[int(name)] = int(parent)
            if state not in ("Z", "X"):
                living.add(int(name))
    return parents, living


def _below(root: int, parents: Mapping[int, int], living: set[int]) -> tuple[list[int], bool]:
    """Whose chain ends at `root`; and whether some chain ends at a process that vanished while the others were read:
    its children have another parent by now, perhaps `root`, and only another scan tells.
    """
    found, torn = [], False
    for pid in living:
        current = pid
        while current != root and current in parents:
            current = parents[current]
        torn = torn or current not in (root, 0)
        if current == root and pid != root:
            found.append(pid)
    return sorted(found), torn
