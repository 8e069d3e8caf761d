"""Whether the kernel has killed processes of this container for want of memory. Used by `local_ranks`.

What a container sees of its cgroup: version 2 in one folder, version 1 in a folder of its own.
"""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
UNLIMITED_BYTES = 1 << 60
"""Version 1 writes a number near 2^63 where there is no limit."""


@dataclass(frozen=True)
class Memory:
    kills: int = 0
    """Since the container began. 0 also where nothing can be read."""
    limit_bytes: int | None = None


def look(root: Path = ROOT) -> Memory:
    for events, limit in (
        ("memory.events", "memory.max"),
        ("memory/memory.oom_control", "memory/memory.limit_in_bytes"),
    ):
        found = dict(line.partition(" ")[::2] for line in _read(root / events).splitlines())
        if "oom_kill" in found:
            most = _read(root / limit).strip()
            limited = most.isdecimal() and int(most) < UNLIMITED_BYTES
            return Memory(int(found["oom_kill"]), int(most) if limited else None)
    return Memory()


def sentence(before: Memory, after: Memory) -> str:
    """Why a rank that was killed by SIGKILL was, if this is why."""
    if after.kills <= before.kills:
        return ""
    if after.limit_bytes is None:
        return "out of memory on the node; set limits.memory of the trainer container in spec.podTemplate"
    limit = f"{after.limit_bytes / 2**30:.1f} GiB" if after.limit_bytes >= 2**30 else f"{after.limit_bytes >> 20} MiB"
    return f"out of memory at the container's limit of {limit}; raise limits.memory of the trainer container in spec.podTemplate"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
