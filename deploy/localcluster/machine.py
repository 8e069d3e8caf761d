"""What the cluster changes on the machine outside its own folder, remembered before and set back after. Used by cluster.py.

Kernel settings, and folders at fixed places that containerd, kubelet and CNI make for themselves.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from localcluster import mounts
from localcluster.layout import Layout
from localcluster.output import Failure, say

SYSCTL = Path("/proc/sys")
# None: kubelet and kube-proxy set it by themselves.
SETTINGS: dict[str, str | None] = {
    "net/ipv4/ip_forward": "1",
    "net/bridge/bridge-nf-call-iptables": "1",  # replies between pods must pass the address translation of Services
    "net/ipv4/conf/all/route_localnet": None,
    "vm/overcommit_memory": None,
    "kernel/panic": None,
    "kernel/panic_on_oops": None,
    "kernel/keys/root_maxkeys": None,
    "kernel/keys/root_maxbytes": None,
}
FOLDERS = ("/run/containerd", "/run/buildkit", "/var/lib/kubelet", "/var/lib/cni", "/var/log/containers")


@dataclass(frozen=True)
class Before:
    """The machine before the cluster."""

    settings: dict[str, str]
    absent: list[str]  # folders that did not exist


def remember(layout: Layout) -> None:
    """Writes down how the machine is, once per cluster."""
    file = _file(layout)
    if file.exists():
        return
    settings = {name: (SYSCTL / name).read_text().strip() for name in SETTINGS if (SYSCTL / name).exists()}
    before = Before(settings, [folder for folder in FOLDERS if not Path(folder).exists()])
    temporary = file.with_suffix(".new")
    temporary.write_text(json.dumps(asdict(before), indent=1))
    temporary.rename(file)


def apply_settings() -> None:
    """Sets what is ours to set, and says so."""
    if not (SYSCTL / "net/bridge").exists():
        say("loading the kernel module br_netfilter")
        result = subprocess.run(["modprobe", "br_netfilter"], capture_output=True, text=True)
        if not (SYSCTL / "net/bridge").exists():
            raise Failure(
                f"the kernel module br_netfilter cannot be loaded ({result.stderr.strip() or 'no reason given'}); "
                "use a kernel that has it"
            )
    for name, value in SETTINGS.items():
        path = SYSCTL / name
        if value is not None and path.read_text().strip() != value:
            say(f"setting sysctl {name.replace('/', '.')} = {value}; `down` sets it back")
            path.write_text(value)


def restore(layout: Layout) -> None:
    """Sets the settings back and removes the folders that the cluster's parts made."""
    file = _file(layout)
    if not file.exists():
        return
    before = Before(**json.loads(file.read_text()))
    for name, value in before.settings.items():
        path = SYSCTL / name
        if path.exists() and path.read_text().strip() != value:
            path.write_text(value)
    for folder in map(Path, before.absent):
        mounts.unmount_below(folder)
        if folder.exists():
            shutil.rmtree(folder)
    logs = Path("/var/log/containers")
    for link in logs.iterdir() if logs.is_dir() else ():
        if link.is_symlink() and link.readlink().is_relative_to(layout.run):
            link.unlink()


def _file(layout: Layout) -> Path:
    return layout.run / "machine-before.json"
