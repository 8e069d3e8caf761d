"""A real API server of a test's own: etcd and kube-apiserver as processes on free loopback ports. Used by conftest.

No controllers, no kubelet: pods are what the test says they are, and nothing else changes them. It shares nothing with
the local cluster but the binaries, so both can run at once.
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from ciuic_api.crd import custom_resource_definition

CACHE = Path(os.environ.get("DEEPSEEKJOB_CACHE") or Path.home() / ".cache" / "deepseekjob")
TOKEN = "the-admin-of-this-test"
START_SECONDS = 60.0


@dataclass(frozen=True)
class ApiServer:
    url: str
    kubeconfig: Path
    kubectl_path: str

    def kubectl(self, *args: str, stdin: dict[str, Any] | None = None) -> str:
        result = subprocess.run(
            [self.kubectl_path, "--kubeconfig", str(self.kubeconfig), *args],
            input=json.dumps(stdin) if stdin is not None else None,
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, f"kubectl {' '.join(args)}: {result.stderr}"
        return result.stdout

    def get(self, *args: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *args, "-o", "json"))
        return found


@contextmanager
def running(folder: Path) -> Iterator[ApiServer]:
    ports = free_ports(3)
    etcd_url, url = f"http://127.0.0.1:{ports[0]}", f"https://127.0.0.1:{ports[2]}"
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
    subprocess.run(["openssl", "genrsa", "-out", str(folder / "sa.key"), "2048"], check=True, capture_output=True)
    etcd = [
        binary("etcd"), "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync", "--log-level=error",
        "--listen-client-urls", etcd_url, "--advertise-client-urls", etcd_url,
        "--listen-peer-urls", f"http://127.0.0.1:{ports[1]}",
    ]  # fmt: skip
    server = [
        binary("kube-apiserver"), f"--etcd-servers={etcd_url}", f"--secure-port={ports[2]}", "--bind-address=127.0.0.1",
        f"--cert-dir={folder / 'certs'}", f"--token-auth-file={folder / 'tokens.csv'}", "--authorization-mode=RBAC",
        f"--service-account-key-file={folder / 'sa.key'}", f"--service-account-signing-key-file={folder / 'sa.key'}",
        "--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.97.0.0/24",
        "--endpoint-reconciler-type=none",
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    with (folder / "etcd.log").open("wb") as etcd_log, (folder / "apiserver.log").open("wb") as server_log:
        processes = [start(etcd, etcd_log, environment)]
        try:
            processes.append(start(server, server_log, environment))
            wait_ready(url, processes, folder / "apiserver.log")
            kubeconfig = write_kubeconfig(folder, url)
            found = ApiServer(url=url, kubeconfig=kubeconfig, kubectl_path=binary("kubectl"))
            found.kubectl("apply", "--server-side", "-f", "-", stdin=custom_resource_definition())
            found.kubectl("wait", "--for=condition=Established", "crd/deepseekjobs.ciuic.io", "--timeout=30s")
            # Which a controller would make.
            found.kubectl("create", "serviceaccount", "default")
            yield found
        finally:
            for process in reversed(processes):
                process.kill()
                process.wait()


def start(command: list[str], log: BinaryIO, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process that ends with the test run, however that ends."""
    return subprocess.Popen(command, stdout=log, stderr=log, env=environment, preexec_fn=die_with_parent)


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def binary(name: str) -> str:
    cached = CACHE / "bin/current" / name
    found = str(cached) if cached.exists() else shutil.which(name)
    if found is None:
        pytest.fail(f"no {name}: `make test` builds one together with the local cluster")
    return found


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_ready(url: str, processes: list[subprocess.Popen[bytes]], log: Path) -> None:
    context = ssl._create_unverified_context()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    request = urllib.request.Request(f"{url}/readyz", headers={"Authorization": f"Bearer {TOKEN}"})
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with opener.open(request, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            dead = [process.args for process in processes if process.poll() is not None]
            if dead or time.monotonic() > deadline:
                pytest.fail(f"no API server ({error}); its log ends with:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)


def write_kubeconfig(folder: Path, url: str) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin", "namespace": "default"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path
