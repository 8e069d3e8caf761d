"""Images of the node: its store, the sandbox image and the base image. Used by `up` and builds.py."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tarfile
import threading
from pathlib import Path
from typing import Any

from localcluster import archives, mounts, packages, registries
from localcluster.configs import PAUSE_IMAGE
from localcluster.layout import Layout
from localcluster.output import Failure, progress

SUITE = "bookworm"
# Everything that the Dockerfiles of this project install with apt, so that with this base they install nothing.
BASE_PACKAGES = (
    "bible-kjv", "ca-certificates", "g++", "ibverbs-providers", "iproute2", "libibverbs1", "python3", "python3-dev",
    "python3-venv",
)  # fmt: skip
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def ctr(layout: Layout, *arguments: str) -> str:
    """Runs containerd's client in the namespace of the node's pods."""
    command = [str(layout.bin / "ctr"), "--address", str(layout.containerd_socket), "--namespace", "k8s.io", *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise Failure(
            f"`ctr {' '.join(arguments)}` failed: {result.stderr.strip()}; `status` tells whether containerd runs",
            layout.log / "containerd.log",
        )
    return result.stdout


def exists(layout: Layout, name: str) -> bool:
    return name in ctr(layout, "images", "ls", "--quiet", f"name=={name}").split()


def ensure_pause(layout: Layout) -> None:
    """Imports the image that holds each pod's namespaces open."""
    if exists(layout, PAUSE_IMAGE):
        return
    layer = layout.run / "tmp" / "pause.tar"
    with tarfile.open(layer, "w") as archive:
        archive.add((layout.bin / "pause").resolve(), "pause")
    _import(layout, PAUSE_IMAGE, layer, {"Entrypoint": ["/pause"]})
    layer.unlink()


def base_name() -> str:
    key = hashlib.sha256(repr((SUITE, BASE_PACKAGES)).encode()).hexdigest()[:12]
    return f"localhost/deepseekjob-base:{key}"


def ensure_base(layout: Layout) -> str:
    """Makes the base image from Debian's packages, for machines that reach no image registry; returns its name."""
    name = base_name()
    if exists(layout, name):
        return name
    packages.ensure(layout, packages.NEEDED_FOR_BASE_IMAGE)
    making = layout.cache / "base-making"
    mounts.unmount_below(making)
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    _checked(["mount", "-t", "tmpfs", "-o", "size=2g", "base-making", str(making)])  # dpkg syncs each file to disk
    root, layer, log = making / "root", making / "layer.tar", layout.log / "debootstrap.log"
    command = [
        "debootstrap", "--variant=minbase", f"--include={','.join(BASE_PACKAGES)}", SUITE, str(root),
        *registries.debian_mirror(),
    ]  # fmt: skip
    with progress("base image from Debian's packages") as step, log.open("w") as log_file:
        process = subprocess.Popen(command, stdout=log_file, stderr=subprocess.STDOUT, cwd="/")
        while True:
            try:
                status = process.wait(0.5)
                break
            except subprocess.TimeoutExpired:
                step.tick(last_words(log))
        if status != 0:
            raise Failure(f"debootstrap ended with {status}; check that Debian's mirror answers and run again", log)
        for folder in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
            shutil.rmtree(root / folder, ignore_errors=True)
            (root / folder).mkdir(parents=True)
        (root / "var/cache/apt/archives/partial").mkdir(parents=True)
        (root / "var/lib/apt/lists/partial").mkdir(parents=True)
        (root / "etc/hostname").write_text("localhost\n")
        _checked(["tar", "--create", "--numeric-owner", "--file", str(layer), "--directory", str(root), "."])
        _import(layout, name, layer, {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]})
    mounts.unmount_below(making)
    making.rmdir()
    return name


def remove_containers(layout: Layout) -> bool:
    """Removes the containers, and their file systems, that an earlier cluster left in the node's store."""
    names = ctr(layout, "containers", "ls", "--quiet").split()
    if names:
        ctr(layout, "containers", "rm", *names)
    return bool(names)


def _import(layout: Layout, name: str, layer: Path, settings: dict[str, Any]) -> None:
    command = [
        str(layout.bin / "ctr"), "--address", str(layout.containerd_socket), "--namespace", "k8s.io",
        "images", "import", "-",
    ]  # fmt: skip
    architecture = ARCHITECTURES.get(platform.machine())
    if architecture is None:
        raise Failure(f"this machine is a {platform.machine()}; images are made for {' and '.join(ARCHITECTURES)} only")
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdin is not None and process.stdout is not None
    output: list[bytes] = []
    reader = threading.Thread(target=lambda stream: output.append(stream.read()), args=(process.stdout,))
    reader.start()
    try:
        archives.write(process.stdin, name, layer, settings, architecture)
        process.stdin.close()
    except BrokenPipeError:  # its exit code and words tell why
        process.kill()
    reader.join()
    if process.wait() != 0:
        words = b"".join(output).decode(errors="replace").strip()
        raise Failure(f"containerd did not import {name}: {words}; check its log", layout.log / "containerd.log")


def last_words(log: Path) -> str:
    """The last line of a log that has one, shortened: what a long step is doing."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 2000))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:100] if lines else ""


def _checked(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"})
    if result.returncode != 0:
        raise Failure(f"`{' '.join(command)}` failed: {result.stderr.strip()[-300:]}")
