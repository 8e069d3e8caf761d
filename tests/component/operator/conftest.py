"""Shared by the operator's component tests."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import api_server
import operator_process
from api_server import ApiServer
from live_job import LiveJob
from operator_process import OperatorProcess


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.component)


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real API server without controllers, for all tests of the run; each uses a namespace of its own."""
    with api_server.running(tmp_path_factory.mktemp("api")) as found:
        yield found


@pytest.fixture(scope="session")
def account(api: ApiServer) -> Path:
    """kubeconfig of the operator's account."""
    return operator_process.grant(api)


@pytest.fixture
def operator(account: Path, tmp_path: Path) -> Iterator[OperatorProcess]:
    with operator_process.operator_process(account, tmp_path / "operator") as made:
        yield made


@pytest.fixture
def job(api: ApiServer) -> Iterator[LiveJob]:
    """A job of an own script in two pods, in a namespace of its own; not applied yet."""
    made = LiveJob(api, f"test-{uuid.uuid4().hex[:8]}")
    api.kubectl("create", "namespace", made.namespace)
    api.kubectl("create", "serviceaccount", "default", "-n", made.namespace)
    yield made
    api.kubectl("delete", "dsj,pods", "--all", "-n", made.namespace, "--grace-period=0", "--force")
