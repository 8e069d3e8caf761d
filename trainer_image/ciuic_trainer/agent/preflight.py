"""What is checked in the pod before an attempt may run: versions, the interface, shared memory. Used by `runtime`."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ciuic_api.protocol import Preflight, PreflightProblem

PACKAGES = ("torch", "deepspeed", "transformers")
SHM_WARNING_BYTES = 64 * 1024**2
NETWORK = Path("/sys/class/net")


def check(interface: str | None) -> Preflight:
    problems = [problem for problem in (_interface_problem(interface), _shm_problem()) if problem is not None]
    return Preflight(problems=tuple(problems), versions=_versions())


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _interface_problem(name: str | None) -> PreflightProblem | None:
    if name is None:
        return None
    there = sorted(entry.name for entry in NETWORK.iterdir()) if NETWORK.is_dir() else []
    if name not in there:
        message = f"network.interface {name} does not exist in the pod; there are {', '.join(there) or 'none'}"
        return PreflightProblem(code="InterfaceMissing", message=message)
    flags = int((NETWORK / name / "flags").read_text(), 16)
    if not flags & 1:
        up = [other for other in there if int((NETWORK / other / "flags").read_text(), 16) & 1]
        message = f"network.interface {name} is down; up are {', '.join(up) or 'none'}"
        return PreflightProblem(code="InterfaceDown", message=message)
    return None


def _shm_problem() -> PreflightProblem | None:
    volume = os.statvfs("/dev/shm")
    size = volume.f_blocks * volume.f_frsize
    if size < SHM_WARNING_BYTES:
        message = f"/dev/shm has {size // 2**20} MiB, collectives need at least 64; raise memory.shm"
        return PreflightProblem(code="SharedMemory", message=message)
    return None
