"""The embedded Kubernetes while it is in use: asked, brought up again, one part of it stopped and started."""

import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]
S3 = "http://10.88.0.1:7070/health"


def localcluster(*arguments: str, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "deploy/localcluster"), *arguments]
    environment = None if cache is None else {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEEPSEEKJOB_CACHE": str(cache)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def s3_answers() -> bool:
    try:
        with urllib.request.urlopen(S3, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def test_status_says_that_every_part_is_ready() -> None:
    result = localcluster("status")
    assert result.returncode == 0, result.stdout + result.stderr
    parts = [line for line in result.stdout.splitlines() if " process " in line]
    assert len(parts) == 10
    assert all(line.endswith(" ready") for line in parts)


def test_up_on_a_live_cluster_changes_nothing_and_is_quick() -> None:
    before = localcluster("status").stdout
    started = time.monotonic()
    result = localcluster("up")
    seconds = time.monotonic() - started
    assert result.returncode == 0, result.stdout + result.stderr
    assert "started" not in result.stdout
    assert [line for line in before.splitlines() if " process " in line] == [
        line for line in localcluster("status").stdout.splitlines() if " process " in line
    ]
    assert seconds < 15, f"`up` took {seconds:.1f} s on a live cluster"


def test_pods_that_come_and_go_do_not_change_the_address_of_their_gateway() -> None:
    """A pod that was told another one loses the node, S3 on it too, for as long as it talks to any other pod."""
    address = Path("/sys/class/net/cni0/address")
    before = address.read_text()
    subprocess.run(["ip", "link", "add", "dsj-port", "address", "02:00:00:00:00:01", "type", "veth"], check=True)
    try:
        subprocess.run(["ip", "link", "set", "dsj-port", "master", "cni0"], check=True)
        assert address.read_text() == before
    finally:
        subprocess.run(["ip", "link", "delete", "dsj-port"], check=True)


def test_a_second_cluster_is_refused_and_names_the_first(tmp_path: Path) -> None:
    result = localcluster("up", cache=tmp_path / "second")
    assert result.returncode == 1
    assert "one machine holds one cluster" in result.stderr
    assert "/run," in result.stderr and "deploy/localcluster down" in result.stderr
    assert not (tmp_path / "second" / "run").exists()
    assert localcluster("down", cache=tmp_path / "second").returncode == 0
    assert localcluster("status").returncode == 0, "another cache folder's `down` leaves this cluster alone"


def test_s3_alone_can_be_stopped_and_started_with_its_data() -> None:
    assert s3_answers()
    assert localcluster("stop", "s3").returncode == 0
    try:
        assert not s3_answers()
        assert "s3" in localcluster("stop", "s3").stdout
        status = localcluster("status")
        assert status.returncode == 1
        assert "is not running" in status.stdout
    finally:
        started = localcluster("start", "s3")
    assert started.returncode == 0, started.stderr
    assert s3_answers()


def test_an_unknown_component_is_answered_with_those_that_exist() -> None:
    result = localcluster("stop", "s4")
    assert result.returncode == 2
    assert "apiserver" in result.stderr and "s3" in result.stderr
