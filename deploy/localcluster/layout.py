"""Where everything lies and which addresses the cluster has. The one place that names them; used by every module."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent

NODE = "node1"
BRIDGE = "cni0"
BRIDGE_IP = "10.88.0.1"
POD_CIDR = "10.88.0.0/16"
FIRST_POD_IP = "10.88.1.1"
SERVICE_CIDR = "10.96.0.0/16"
KUBERNETES_IP = "10.96.0.1"
DNS_IP = "10.96.0.10"
API_PORT = 6443
S3_PORT = 7070
S3_BUCKET = "ckpt"
S3_ACCESS_KEY = "deepseek"
S3_SECRET_KEY = "deepseek-secret"  # a throw-away store on a bridge of this machine


@dataclass(frozen=True)
class Layout:
    """The folders below one cache folder."""

    cache: Path

    @classmethod
    def from_environment(cls) -> Layout:
        given = os.environ.get("DEEPSEEKJOB_CACHE")
        return cls(Path(given).resolve() if given else Path.home() / ".cache" / "deepseekjob")

    @property
    def store(self) -> Path:
        """Binaries, one folder per target and version."""
        return self.cache / "bin" / "store"

    @property
    def bin(self) -> Path:
        """Links to the binaries of the current versions, for PATH."""
        return self.cache / "bin" / "current"

    @property
    def go(self) -> Path:
        """Go's module and compile caches; removed when everything is built."""
        return self.cache / "go"

    @property
    def node_store(self) -> Path:
        """Images and build cache of the node. Data, not state: it outlives `down`, so that the next `up` is quick."""
        return self.cache / "node"

    @property
    def run(self) -> Path:
        """All state of the live cluster."""
        return self.cache / "run"

    @property
    def pki(self) -> Path:
        return self.run / "pki"

    @property
    def log(self) -> Path:
        return self.run / "log"

    @property
    def config(self) -> Path:
        return self.run / "config"

    @property
    def records(self) -> Path:
        """One file per started process: its id and start time."""
        return self.run / "processes"

    @property
    def kubeconfig(self) -> Path:
        return self.run / "admin.conf"

    @property
    def containerd_socket(self) -> Path:
        return self.run / "containerd.sock"

    @property
    def buildkit_socket(self) -> Path:
        return self.run / "buildkitd.sock"
