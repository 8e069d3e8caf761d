"""What the cluster's parts leave behind outside their own folders, and how it is removed. Used by `up` and `down`."""

from __future__ import annotations

from pathlib import Path

from localcluster import images
from localcluster.layout import Layout


def remove_containers(layout: Layout) -> bool:
    """Removes the containers (and their file systems) of an earlier cluster from the node's store."""
    names = images.ctr(layout, "containers", "ls", "--quiet").split()
    if names:
        images.ctr(layout, "containers", "rm", *names)
    return bool(names)


def remove_files(layout: Layout) -> None:
    """Removes what kubelet and CNI write at fixed places."""
    logs = Path("/var/log/containers")
    for link in logs.iterdir() if logs.is_dir() else ():
        if link.is_symlink() and link.readlink().is_relative_to(layout.run):
            link.unlink()
