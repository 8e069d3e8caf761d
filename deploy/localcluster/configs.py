"""Fills the templates of the folder config/ for one cluster. Called by `up` before anything starts."""

from __future__ import annotations

import shutil
import string
from pathlib import Path

from localcluster import cgroups, layout, packages
from localcluster.layout import HERE, Layout
from localcluster.output import Failure

PAUSE_IMAGE = "localhost/pause:1"


def values(where: Layout) -> dict[str, str]:
    """What the templates may use."""
    runc = shutil.which("runc")
    if runc is None:
        raise Failure("runc is not on PATH; install the package runc and run again")
    return {
        "BRIDGE": layout.BRIDGE,
        "BRIDGE_IP": layout.BRIDGE_IP,
        "CGROUP": cgroups.GROUP,
        "CGROUP_BUILDKIT": f"/{cgroups.BUILDKIT}",
        "CNI_FOLDER": str(packages.cni_folder()),
        "DNS_IP": layout.DNS_IP,
        "FIRST_POD_IP": layout.FIRST_POD_IP,
        "NODE": layout.NODE,
        "NODE_STORE": str(where.node_store),
        "PAUSE_IMAGE": PAUSE_IMAGE,
        "POD_CIDR": layout.POD_CIDR,
        "RUN": str(where.run),
        "RUNC": runc,
    }


def write(where: Layout) -> None:
    """Writes every configuration file below run/config."""
    filled = values(where)
    for template in sorted((HERE / "config").iterdir()):
        folder = where.config / "cni" if template.suffix == ".conflist" else where.config
        _write_if_changed(folder / template.name, string.Template(template.read_text()).substitute(filled))


def _write_if_changed(path: Path, text: str) -> None:
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text)
    temporary.rename(path)
