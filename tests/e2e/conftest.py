"""Shared by the e2e tests: the cluster's files, kubectl and helm as functions, the installed chart, a fresh namespace."""

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("DEEPSEEKJOB_CACHE") or Path.home() / ".cache" / "deepseekjob")
CHART = ROOT / "charts/deepseekjob"
RELEASE = "deepseekjob"
RELEASE_NAMESPACE = "deepseekjob-system"
IMAGE_TAG = "dev"


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
    kubectl("delete", "namespace", name, "--wait=false")
