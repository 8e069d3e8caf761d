"""The life of the embedded Kubernetes: ends and comes back. Ends the machine's cluster, so nothing else may use it.

pytest -m soak tests/e2e/test_localcluster_life.py
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("DEEPSEEKJOB_CACHE") or Path.home() / ".cache" / "deepseekjob")
RUN = CACHE / "run"
POD = """
apiVersion: v1
kind: Pod
metadata: {name: life}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: memory, emptyDir: {medium: Memory}}]
  containers:
    - name: pause
      image: localhost/pause:1
      volumeMounts: [{name: memory, mountPath: /memory}]
"""


def localcluster(*arguments: str) -> str:
    command = [sys.executable, str(ROOT / "deploy/localcluster"), *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    command = [str(CACHE / "bin/current/kubectl"), "--kubeconfig", str(RUN / "admin.conf"), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, input=stdin)
    assert result.returncode == 0, result.stderr
    return result.stdout


def eventually(condition: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def groups() -> list[Path]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [Path(line.split(" ")[4]) for line in lines if line.partition(" - ")[2].startswith("cgroup")]
    return [point / "deepseekjob" for point in points if (point / "deepseekjob").exists()]


def processes() -> set[int]:
    """All processes of the cluster: daemons, shims and what runs in pods."""
    files = [file for group in groups() for file in group.rglob("cgroup.procs")]
    return {int(line) for file in files for line in file.read_text().split() if line != "0"}


def mounts() -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(CACHE) in line]


def interfaces() -> list[str]:
    names = [path.name for path in Path("/sys/class/net").iterdir()]
    return [name for name in names if name == "cni0" or name.startswith("veth")]


def chains() -> list[str]:
    saved = "".join(
        subprocess.run([command], capture_output=True, text=True).stdout
        for command in ("iptables-save", "ip6tables-save")
    )
    return [line for line in saved.splitlines() if "KUBE-" in line or "CNI-" in line]


def settings() -> dict[str, str]:
    names = (
        "net/ipv4/ip_forward",
        "net/ipv4/conf/all/route_localnet",
        "vm/overcommit_memory",
        "kernel/panic",
        "kernel/panic_on_oops",
    )
    return {name: (Path("/proc/sys") / name).read_text().strip() for name in names}


def start_pod() -> None:
    kubectl("delete", "pod", "life", "--ignore-not-found", "--wait")
    kubectl("apply", "-f", "-", stdin=POD)
    kubectl("wait", "--for=condition=Ready", "pod/life", "--timeout=60s")


def kill_everything() -> None:
    victims = processes()
    assert victims
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # it ended with another one
            continue
    eventually(lambda: not processes(), 30, "all processes of the cluster gone")


def nothing_left() -> None:
    assert groups() == []
    assert mounts() == []
    assert interfaces() == []
    assert chains() == []
    assert not RUN.exists()


def test_down_leaves_nothing_and_sets_the_machine_back() -> None:
    localcluster("up")
    before = json.loads((RUN / "machine-before.json").read_text())
    start_pod()
    assert processes() and mounts() and interfaces() and chains()
    localcluster("down")
    nothing_left()
    assert settings().items() <= before["settings"].items()
    assert [folder for folder in before["absent"] if Path(folder).exists()] == []
    localcluster("down")


def test_a_killed_cluster_comes_back_with_its_objects() -> None:
    localcluster("up")
    start_pod()
    kubectl("delete", "configmap", "kept", "--ignore-not-found")
    kubectl("create", "configmap", "kept", "--from-literal=a=b")
    kill_everything()
    assert groups() and mounts() and interfaces()
    localcluster("up")
    assert kubectl("get", "configmap", "kept", "-o", "jsonpath={.data.a}") == "b"
    start_pod()


def test_down_works_on_a_killed_cluster() -> None:
    localcluster("up")
    start_pod()
    kill_everything()
    localcluster("down")
    nothing_left()


@pytest.mark.parametrize("seconds", [0.3, 0.8, 1.5, 3.0, 5.0, 8.0])
def test_a_killed_up_is_picked_up_by_the_next(seconds: float) -> None:
    localcluster("down")
    with subprocess.Popen(
        [sys.executable, str(ROOT / "deploy/localcluster"), "up"], stdout=subprocess.DEVNULL
    ) as first:
        try:
            first.wait(seconds)
        except subprocess.TimeoutExpired:
            first.kill()
    localcluster("up")
    start_pod()
    localcluster("status")
