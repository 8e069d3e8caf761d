"""A job on a real API server, its pods and their pretend agents, for tests of the operator."""

import json
from dataclasses import dataclass, field
from typing import Any

from api_server import ApiServer
from ciuic_api.names import LABEL_INCARNATION, LABEL_JOB, LABEL_SLOT, token_audience
from ciuic_api.protocol import AgentState
from pretend_agent import PretendAgent, config_of
from waiting import eventually


@dataclass
class LiveJob:
    api: ApiServer
    namespace: str
    name: str = "tiny"
    agents: dict[str, PretendAgent] = field(default_factory=dict)
    """By pod name."""

    def apply(self, **spec: Any) -> None:
        body = {
            "apiVersion": "ciuic.io/v1alpha1",
            "kind": "DeepSeekJob",
            "metadata": {"name": self.name, "namespace": self.namespace, "labels": {"ciuic.io/watchdog": "true"}},
            "spec": {"nodes": 2, "accelerator": "cpu", "command": ["python", "x.py"], **spec},
        }
        self.api.kubectl("apply", "--server-side", "-f", "-", stdin=body)

    def kubectl(self, *args: str) -> str:
        return self.api.kubectl(*args, "-n", self.namespace)

    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", "dsj", self.name, "-o", "json"))
        return found

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.body().get("status") or {}
        return status

    def pods(self) -> dict[str, dict[str, Any]]:
        items = json.loads(self.kubectl("get", "pods", "-l", LABEL_JOB, "-o", "json"))["items"]
        return {pod["metadata"]["name"]: pod for pod in items}

    def uids(self) -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in self.pods().items()}

    def events(self) -> list[tuple[str, str]]:
        items = json.loads(self.kubectl("get", "events", "-o", "json"))["items"]
        return [(item["reason"], item["message"]) for item in items]

    async def has(self, what: str, seconds: float = 20.0, **fields: Any) -> dict[str, Any]:
        """The status once it has these fields."""

        seen: dict[str, Any] = {}

        def matches() -> bool:
            seen.clear()
            seen.update(self.status())
            return all(seen.get(name) == value for name, value in fields.items())

        try:
            await eventually(what, matches, seconds, pause=0.1)
        except AssertionError as error:
            raise AssertionError(f"{what}: {fields} not within {seconds} s; the status is {seen}") from error
        return seen

    async def has_pods(self, *names: str) -> None:
        await eventually(f"pods {names}", lambda: set(self.pods()) == set(names), pause=0.1)

    def agent(self, pod_name: str, **changes: Any) -> PretendAgent:
        """The agent of a pod, with a token that the server bound to it; not started yet."""
        pod = self.pods()[pod_name]
        config = config_of(pod)
        labels = pod["metadata"]["labels"]
        assert int(labels[LABEL_INCARNATION]) == config.incarnation
        audience = changes.get("audience") or token_audience(config.namespace, config.job, config.job_uid)
        bound = ["--bound-object-kind=Pod", f"--bound-object-name={pod_name}"]
        bound.append(f"--bound-object-uid={pod['metadata']['uid']}")
        token = self.kubectl("create", "token", "default", f"--audience={audience}", *bound).strip()
        return PretendAgent(config=config, token=token, slot=int(labels[LABEL_SLOT]))

    def connect(self) -> None:
        """Pods without an agent get one."""
        for name in self.pods():
            if name not in self.agents:
                self.agents[name] = self.agent(name)
                self.agents[name].start()

    async def runs(self, **spec: Any) -> None:
        """Applies the job and brings it to Running."""
        self.apply(**spec)
        await self.has_pods("tiny-0-0", "tiny-1-1")
        self.connect()
        await self.has("it runs", state="Running", attempt=1)

    async def stop_agents(self) -> None:
        for agent in self.agents.values():
            await agent.stop()

    def states(self) -> list[AgentState]:
        return [agent.state for agent in self.agents.values()]
