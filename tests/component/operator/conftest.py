"""Shared by the operator's component tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import api_server
from api_server import ApiServer


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
