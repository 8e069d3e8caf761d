"""Finds and removes mounts below a folder: pods' volumes, container file systems, network namespaces. Used by `down`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from localcluster.output import Failure


def mount_points(mountinfo: str) -> list[str]:
    """Mount points in the text of /proc/self/mountinfo, in the order of mounting."""
    return [_unescape(line.split(" ")[4]) for line in mountinfo.splitlines()]


def below(folder: Path) -> list[str]:
    """Mount points at or below a folder, the last mounted first."""
    points = mount_points(Path("/proc/self/mountinfo").read_text())
    return [point for point in reversed(points) if point == str(folder) or point.startswith(f"{folder}/")]


def unmount_below(folder: Path) -> int:
    """Unmounts all of them; returns how many there were."""
    count = 0
    while points := below(folder):
        for point in points:
            result = subprocess.run(["umount", point], capture_output=True, text=True)
            if result.returncode != 0:
                detached = subprocess.run(["umount", "--lazy", point], capture_output=True, text=True)
                if detached.returncode != 0:
                    raise Failure(
                        f"cannot unmount {point}: {result.stderr.strip()}; `fuser -vm {point}` tells who uses it"
                    )
            count += 1
    return count


def _unescape(text: str) -> str:
    """mountinfo writes blanks and backslashes as octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
