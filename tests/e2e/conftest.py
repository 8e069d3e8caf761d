"""Shared by the e2e tests: the cluster's files, kubectl and helm as functions, the installed chart, a fresh namespace."""

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import boto3
import jobs
import pytest
from jobs import TrainingJob

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("DEEPSEEKJOB_CACHE") or Path.home() / ".cache" / "deepseekjob")
CHART = ROOT / "charts/deepseekjob"
RELEASE = "deepseekjob"
RELEASE_NAMESPACE = "deepseekjob-system"
IMAGE_TAG = "dev"
SELECTOR = f"app.kubernetes.io/instance={RELEASE}"


class Command(Protocol):
    def __call__(
        self, *args: str, stdin: str | dict[str, Any] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]: ...


def _binary(name: str) -> str:
    cached = CACHE / "bin/current" / name
    found = str(cached) if cached.exists() else shutil.which(name)
    if found is None:
        pytest.fail(f"no {name}: `make test` builds one together with the local cluster")
    return found


def _command(binary: str, kubeconfig: Path) -> Command:
    environment = os.environ | {"KUBECONFIG": str(kubeconfig)}

    def run(
        *args: str, stdin: str | dict[str, Any] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        text = json.dumps(stdin) if isinstance(stdin, dict) else stdin
        result = subprocess.run([binary, *args], input=text, capture_output=True, text=True, env=environment)
        if check and result.returncode != 0:
            pytest.fail(f"{Path(binary).name} {' '.join(args)} failed:\n{result.stdout}{result.stderr}")
        return result

    return run


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    """KUBECONFIG, else the local cluster's."""
    path = Path(os.environ.get("KUBECONFIG") or CACHE / "run/admin.conf")
    if not path.exists():
        pytest.fail(f"{path} does not exist: bring the local cluster up, `make test` does")
    return path


@pytest.fixture(scope="session")
def kubectl(kubeconfig: Path) -> Command:
    return _command(_binary("kubectl"), kubeconfig)


@pytest.fixture(scope="session")
def helm(kubeconfig: Path) -> Command:
    return _command(_binary("helm"), kubeconfig)


@pytest.fixture(scope="session")
def deepseek(kubectl: Command, kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """`kubectl deepseek`, found by kubectl on PATH as an installed plug-in is."""
    folder = tmp_path_factory.mktemp("plugin")
    plugin = folder / "kubectl-deepseek"
    source = f"import sys; sys.path.insert(0, {str(ROOT / 'operator')!r})"
    plugin.write_text(f"#!{sys.executable}\n{source}\nfrom ciuic_cli.__main__ import main\nmain()\n")
    plugin.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "KUBECONFIG": str(kubeconfig)}

    def run(
        *args: str, stdin: str | dict[str, Any] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        command = [_binary("kubectl"), "deepseek", *args]
        result = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
        if check and result.returncode != 0:
            pytest.fail(f"kubectl deepseek {' '.join(args)} failed:\n{result.stdout}{result.stderr}")
        return result

    return run


@pytest.fixture(scope="session")
def chart(helm: Command, kubectl: Command) -> None:
    """The chart as it is in the checkout, installed. Does not wait for the operator."""
    helm(
        *("upgrade", "--install", RELEASE, str(CHART), "--namespace", RELEASE_NAMESPACE, "--create-namespace"),
        *("--set", f"image.tag={IMAGE_TAG}"),
    )
    kubectl("wait", "--for=condition=Established", "crd/deepseekjobs.ciuic.io", "--timeout=30s")


@pytest.fixture
def namespace(kubectl: Command) -> Iterator[str]:
    """Fresh, and deleted after the test, jobs first: their pods go with them."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "dsj", "--all", "-n", name, "--wait=false", check=False)
    kubectl("delete", "namespace", name, "--wait=false")


class Operator:
    """The operator's deployment: wait for it, kill it, put it away and bring it back."""

    def __init__(self, kubectl: Command, namespace: str = RELEASE_NAMESPACE) -> None:
        self.kubectl = kubectl
        self.where = ("-n", namespace)

    def wait(self) -> None:
        self.kubectl("rollout", "status", f"deployment/{RELEASE}", *self.where, "--timeout=120s")

    def kill(self) -> None:
        """The pod is gone at once, as if its node had lost power; another one is made."""
        self.kubectl("delete", "pod", *self.where, "-l", SELECTOR, "--grace-period=0", "--force")

    def scale(self, replicas: int) -> None:
        self.kubectl("scale", f"deployment/{RELEASE}", *self.where, f"--replicas={replicas}")
        if replicas == 0:
            self.kubectl("wait", "pod", *self.where, "-l", SELECTOR, "--for=delete", "--timeout=60s")
        else:
            self.wait()

    def environment(self, *entries: str) -> None:
        """Set (`NAME=value`) or remove (`NAME-`) environment variables; the deployment restarts."""
        self.kubectl("set", "env", f"deployment/{RELEASE}", *self.where, *entries)
        self.wait()

    def logs(self, *arguments: str) -> str:
        return self.kubectl("logs", f"deployment/{RELEASE}", *self.where, *arguments, check=False).stdout


class S3:
    """The local cluster's store, from outside."""

    def __init__(self) -> None:
        self.client = boto3.client(
            "s3",
            endpoint_url=jobs.S3_ENDPOINT,
            region_name="us-east-1",
            aws_access_key_id=jobs.S3_KEY,
            aws_secret_access_key=jobs.S3_SECRET,
        )

    def keys(self, run: str) -> list[str]:
        return self._below(f"e2e/{run}/")

    def clear(self) -> None:
        """Checkpoints of all runs of these tests."""
        self.delete(*self._below("e2e/"))

    def _below(self, prefix: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=jobs.S3_BUCKET, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def manifests(self, run: str) -> list[tuple[int, int]]:
        """(step, attempt) of the manifests, oldest first."""
        names = [key.rsplit("/", 1)[1].removesuffix(".json") for key in self.keys(run) if "/manifests/" in key]
        return sorted((int(name.split(".a")[0]), int(name.split(".a")[1])) for name in names)

    def read(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket=jobs.S3_BUCKET, Key=key)["Body"].read())

    def write(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=jobs.S3_BUCKET, Key=key, Body=data)

    def delete(self, *keys: str) -> None:
        for key in keys:
            self.client.delete_object(Bucket=jobs.S3_BUCKET, Key=key)


@pytest.fixture(scope="session")
def s3() -> S3:
    """What was left for a look after the last time is gone, else every time would take more of the disk."""
    store = S3()
    store.clear()
    return store


@pytest.fixture(scope="session")
def operator(chart: None, kubectl: Command, s3: S3) -> Operator:
    """Installed and ready, of the image as it is in the node now."""
    kubectl("rollout", "restart", f"deployment/{RELEASE}", "-n", RELEASE_NAMESPACE)
    running = Operator(kubectl)
    running.wait()
    return running


@pytest.fixture
def store_down() -> Iterator[Callable[[], None]]:
    """Stops the local S3 server; it is started again after the test, and by the second call of the same function."""
    command = [sys.executable, str(ROOT / "deploy" / "localcluster")]
    stopped = False

    def toggle() -> None:
        nonlocal stopped
        subprocess.run([*command, "start" if stopped else "stop", "s3"], check=True, capture_output=True)
        stopped = not stopped

    yield toggle
    if stopped:
        toggle()


class Apply(Protocol):
    def __call__(self, body: dict[str, Any]) -> TrainingJob: ...


@pytest.fixture
def apply(operator: Operator, kubectl: Command, namespace: str) -> Apply:
    """Applies a job, with the store's secret beside it."""
    kubectl("apply", "-n", namespace, "-f", "-", stdin=jobs.SECRET)

    def create(body: dict[str, Any]) -> TrainingJob:
        kubectl("apply", "-n", namespace, "-f", "-", stdin=body)
        return TrainingJob(kubectl, namespace, body["metadata"]["name"], {})

    return create


@pytest.fixture
def run_name() -> str:
    return f"run-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def uninterrupted(operator: Operator, kubectl: Command) -> Iterator[tuple[jobs.Run, dict[str, Any]]]:
    """The tiny job from start to end without any fault: what every interrupted one is compared with."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    kubectl("apply", "-n", name, "-f", "-", stdin=jobs.SECRET)
    kubectl("apply", "-n", name, "-f", "-", stdin=jobs.tiny("tiny", f"run-{name}"))
    job = TrainingJob(kubectl, name, "tiny", {})
    status = job.wait_state("Complete", 240)
    yield job.run(), status
    kubectl("delete", "namespace", name, "--wait=false")
