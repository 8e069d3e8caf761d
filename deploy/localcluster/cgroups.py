"""The control group /deepseekjob: everything of the cluster is in it, so nothing of it can be missed at the end.

`system` below it holds the daemons (and what they start), `kubepods` the pods, `buildkit` image builds. cgroup v1 (also
with a v2 hierarchy beside it) is what this was run on; v2 follows the kernel's documentation but has not been run.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from localcluster.output import Failure

GROUP = "deepseekjob"
SYSTEM = f"{GROUP}/system"
BUILDKIT = f"{GROUP}/buildkit"
V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")
END_SECONDS = 15.0


def hierarchies(mountinfo: str) -> list[Path]:
    """Mount points of all cgroup hierarchies, from the text of /proc/self/mountinfo."""
    points = []
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.split(" ", 1)[0] in ("cgroup", "cgroup2"):
            points.append(Path(fields.split(" ")[4]))
    return points


def create() -> None:
    """Makes the groups in every hierarchy; harmless when they exist."""
    for top in _hierarchies():
        if (top / "cgroup.controllers").exists():
            _create_v2(top)
        else:
            _create_v1(top)


def _create_v1(top: Path) -> None:
    for name in (GROUP, SYSTEM, BUILDKIT):
        group = top / name
        group.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):  # a new group has none, and could then hold no process
            setting = group / file
            if setting.exists() and not setting.read_text().strip():
                setting.write_text((group.parent / file).read_text())


def _create_v2(top: Path) -> None:
    for name in (GROUP, SYSTEM, BUILDKIT):
        (top / name).mkdir(exist_ok=True)
    for group in (top, top / GROUP):
        there = (group / "cgroup.controllers").read_text().split()
        enabled = (group / "cgroup.subtree_control").read_text().split()
        wanted = [name for name in V2_CONTROLLERS if name in there and name not in enabled]
        if not wanted:
            continue
        try:
            (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))
        except OSError as error:
            raise Failure(
                f"cannot enable {', '.join(wanted)} in {group}/cgroup.subtree_control ({error.strerror}); "
                "move the processes of that group into a group below it, then run again"
            ) from error


def system_procs_file() -> Path:
    """Where a daemon writes its process id to belong to the cluster. One hierarchy is enough to find it again."""
    tops = _hierarchies()
    for top in tops:
        if (top / "pids.max").exists() or top.name == "pids" or len(tops) == 1:
            return top / SYSTEM / "cgroup.procs"
    return tops[0] / SYSTEM / "cgroup.procs"


def kill(names: Iterable[str]) -> int:
    """Ends every process in these groups; returns how many there were."""
    groups = [top / name for top in _hierarchies() for name in names]
    killed: set[int] = set()
    deadline = time.monotonic() + END_SECONDS
    while pids := {pid for group in groups for pid in members(group)}:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            except ProcessLookupError:
                killed.add(pid)
        if time.monotonic() > deadline:
            raise Failure(f"processes {sorted(pids)} of the cluster do not end on SIGKILL; look at them with ps")
        time.sleep(0.02)
    return len(killed)


def members(group: Path) -> Iterator[int]:
    """Process ids in a group and the groups below it; none when there is no such group."""
    for folder, _, files in os.walk(group):
        if "cgroup.procs" in files:
            try:
                text = (Path(folder) / "cgroup.procs").read_text()
            except FileNotFoundError:  # removed while we walked
                continue
            yield from (int(line) for line in text.split() if line != "0")


def remove() -> None:
    """Removes the groups; they must be empty of processes."""
    for top in _hierarchies():
        for folder, _, _ in os.walk(top / GROUP, topdown=False):
            _remove_one(Path(folder))


def _remove_one(group: Path) -> None:
    deadline = time.monotonic() + END_SECONDS
    while True:  # a group stays busy for a moment after its last process has gone
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise Failure(f"cannot remove control group {group} ({error.strerror}); it holds processes") from error
            time.sleep(0.02)


def left() -> list[Path]:
    """Groups of the cluster that exist."""
    return [top / GROUP for top in _hierarchies() if (top / GROUP).exists()]


def _hierarchies() -> list[Path]:
    points = hierarchies(Path("/proc/self/mountinfo").read_text())
    if not points:
        raise Failure("no cgroup hierarchy is mounted on this machine; mount one at /sys/fs/cgroup and run again")
    return points
