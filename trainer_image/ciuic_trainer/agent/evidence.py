"""What is kept of ranks that do not move, before anything is killed. Called by `runtime` in a thread.

Nothing here waits for a rank: one that is stopped, or asleep in the kernel, is described by what /proc says of it.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ciuic_api.protocol import Stack
from ciuic_trainer.shared import stacks

from .processes import descendants

ANSWER_SECONDS = 1.0
BETWEEN_SECONDS = 1.0
QUIET_SECONDS = 0.05
"""An answer that has not grown for this long is complete."""
FRAMES = 12
FRAME_CHARACTERS = 160
CHILDREN = 16
DUMP_CHARACTERS = 64 * 1024
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
MEMORY_FILES = (
    "/sys/fs/cgroup/memory.current",
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory.pressure",
    "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    "/sys/fs/cgroup/memory/memory.oom_control",
    "/proc/loadavg",
    "/proc/meminfo",
)
"""Of cgroup v2, then v1; what is not there is left out."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    rank: int
    pid: int | None
    """None: its process has ended."""
    exit_code: int | None
    stacks_file: Path
    progress: Mapping[str, Any]
    lines: Sequence[str]


def known(subjects: Sequence[Subject]) -> dict[str, Any]:
    """Of ranks of which one ended badly, without asking the others."""
    return {"ranks": [{"rank": one.rank, "exit_code": one.exit_code, **_kept(one)} for one in subjects]}


def _kept(subject: Subject) -> dict[str, Any]:
    return {"progress": dict(subject.progress), "last_lines": list(subject.lines)}


def collect(subjects: Sequence[Subject]) -> tuple[tuple[Stack, ...], dict[str, Any]]:
    """The short form for the report and the whole for people: about two seconds, never more than ten for a full pod."""
    began = time.monotonic()
    living = [(subject.pid, subject) for subject in subjects if subject.pid is not None]
    cpu = {pid: _cpu_seconds(pid) for pid, _ in living}
    first = {pid: _dump(pid, subject.stacks_file) for pid, subject in living}
    time.sleep(BETWEEN_SECONDS)
    told, whole = [], []
    for pid, subject in living:
        state = _state(pid)
        dump = _dump(pid, subject.stacks_file)
        frames = stacks.main_thread(dump)
        elapsed = max(time.monotonic() - began, 0.001)
        share = max(0.0, _cpu_seconds(pid) - cpu[pid]) / elapsed
        told.append(
            Stack(
                rank=subject.rank,
                process_state=state,
                cpu_share=round(share, 2),
                frames=tuple(frame[:FRAME_CHARACTERS] for frame in frames[:FRAMES]),
            )
        )
        whole.append(
            {
                "rank": subject.rank,
                "pid": pid,
                "process_state": state,
                "waits_in_kernel": _read(f"/proc/{pid}/wchan"),
                "cpu_share": round(share, 2),
                "stacks": [first[pid], dump],
                "children": [_child(child, subject.stacks_file) for child in descendants(pid)[:CHILDREN]],
                **_kept(subject),
            }
        )
    memory = {path: text for path in MEMORY_FILES if (text := _read(path))}
    return tuple(told), {"ranks": whole, "pod": memory}


def _child(pid: int, stacks_file: Path) -> dict[str, Any]:
    """A data loader's worker, for example. One that was forked answers into its parent's file."""
    return {
        "pid": pid,
        "name": _read(f"/proc/{pid}/comm").strip(),
        "process_state": _state(pid),
        "waits_in_kernel": _read(f"/proc/{pid}/wchan"),
        "stacks": _dump(pid, stacks_file),
    }


def _dump(pid: int, path: Path) -> str:
    """All its stacks; empty when it does not answer."""
    if not stacks.answers(pid):
        return ""
    start = _size(path)
    try:
        os.kill(pid, stacks.SIGNAL)
    except ProcessLookupError:
        return ""
    _until_quiet(lambda: _size(path), start)
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(DUMP_CHARACTERS).decode(errors="replace")
    except OSError:
        return ""


def _until_quiet(size: Callable[[], int], start: int) -> None:
    deadline = time.monotonic() + ANSWER_SECONDS
    last, since = start, time.monotonic()
    while (now := time.monotonic()) < deadline:
        current = size()
        if current != last:
            last, since = current, now
        elif current > start and now - since > QUIET_SECONDS:
            return
        time.sleep(QUIET_SECONDS / 5)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _state(pid: int) -> str:
    fields = _stat(pid)
    return fields[0] if fields else ""


def _cpu_seconds(pid: int) -> float:
    """Of all its threads."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND if fields else 0.0


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")[:DUMP_CHARACTERS]
    except OSError:
        return ""
