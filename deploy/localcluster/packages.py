"""Debian packages the cluster runs with; `up` installs what is missing and says so."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from localcluster.layout import Layout
from localcluster.output import Failure, say

CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))

# package -> a command it brings (looked up on PATH) or a file below one of CNI_FOLDERS
NEEDED = {
    "runc": "runc",
    "containernetworking-plugins": "cni:bridge",
    "iproute2": "ip",
    "iptables": "iptables-save",
    "conntrack": "conntrack",
    "openssl": "openssl",
    "mount": "umount",
    "util-linux": "nsenter",
}
NEEDED_FOR_BASE_IMAGE = {"debootstrap": "debootstrap", "wget": "wget", "gpgv": "gpgv"}


def ensure(layout: Layout, needed: dict[str, str]) -> None:
    """Installs the packages whose evidence is missing on this machine."""
    missing = [package for package, evidence in needed.items() if not _present(evidence)]
    if not missing:
        return
    names = " ".join(missing)
    if shutil.which("apt-get") is None:
        raise Failure(f"this machine lacks {names} (Debian's names) and has no apt-get; install them and run again")
    say(f"installing Debian packages: {names}")
    log = layout.cache / "apt.log"
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    layout.cache.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        for command in (
            ["apt-get", "update", "-q"],
            ["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing],
        ):
            status = subprocess.run(command, env=environment, stdout=file, stderr=subprocess.STDOUT).returncode
            if status != 0:
                raise Failure(f"`{' '.join(command)}` ended with {status}; repair apt and run again", log)
    still = [package for package in missing if not _present(needed[package])]
    if still:
        raise Failure(f"{' '.join(still)} installed but {needed[still[0]]} is not found; check PATH", log)


def cni_folder() -> Path:
    """The folder with the CNI plug-ins."""
    for folder in CNI_FOLDERS:
        if (folder / "bridge").exists():
            return folder
    raise Failure(f"no CNI plug-in `bridge` in {' or '.join(map(str, CNI_FOLDERS))}; install the plug-ins there")


def _present(evidence: str) -> bool:
    if evidence.startswith("cni:"):
        return any((folder / evidence[4:]).exists() for folder in CNI_FOLDERS)
    return shutil.which(evidence) is not None
