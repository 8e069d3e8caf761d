"""A real S3 server, a hub and agents as processes, for the agent's component tests."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from api_server import free_ports
from ciuic_api.agent_config import AgentConfig

from .agents import JOB_UID, AgentProcess
from .gateway import Gateway
from .hub import Hub


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.component)


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path / "s3")
    gateway.start()
    yield gateway
    gateway.stop()


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    made = Hub(port=free_ports(1)[0])
    await made.start()
    yield made
    await made.stop()


NewAgent = Callable[..., AgentProcess]


@pytest.fixture
def prefork() -> bool:
    """Whether ranks are forked; a module that tests both overrides it."""
    return False


@pytest.fixture
def new_agent(hub: Hub, tmp_path: Path, prefork: bool) -> Iterator[NewAgent]:
    """Starts agents; what a test does not say of their configuration is that of a job of one pod with one rank."""
    made: list[AgentProcess] = []

    def make(
        incarnation: int = 0, environment: dict[str, str] | None = None, start: bool = True, **changes: Any
    ) -> AgentProcess:
        fields: dict[str, Any] = {
            "namespace": "team",
            "job": "tiny",
            "job_uid": JOB_UID,
            "cluster": "cluster-1",
            "incarnation": incarnation,
            "nodes": 1,
            "ranks_per_node": 1,
            "accelerator": "cpu",
            "hub_url": hub.url,
            "hub_ca_pem": "",
            "prefork": prefork,
        }
        agent = AgentProcess(AgentConfig(**(fields | changes)), tmp_path / f"pod-{incarnation}", environment or {})
        made.append(agent)
        if start:
            agent.start()
        return agent

    yield make
    for agent in made:
        agent.kill()
        print(f"--- agent {agent.incarnation}\n{agent.log[-4000:]}")
