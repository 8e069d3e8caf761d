"""One World from caches and reports, and the two reads that must be live."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from ciuic_api.protocol import AgentState, Owner, Report, RunState, StoreState
from ciuic_operator.errors import NotFound
from ciuic_operator.jobs import Jobs
from ciuic_operator.kube import JobKey, PodWarning
from ciuic_operator.model import Agent, Node
from ciuic_operator.objects import NodeRecord, PodRecord, pod_record
from ciuic_operator.observe import HELD_UP_SECONDS, OWNER_SECONDS, WARNING_SECONDS, Observation, Observe
from ciuic_operator.obstacles import Obstacles
from ciuic_operator.watches import Store
from component_bodies import job_body, pod_body

NOW = datetime(2026, 11, 30, tzinfo=UTC)


@dataclass
class Sources:
    """Everything that Observe reads."""

    body: dict[str, Any] = field(default_factory=lambda: job_body("u", 5))
    agents: dict[str, Agent] = field(default_factory=dict)
    living: list[str] = field(default_factory=list)
    """UIDs of the jobs that a live list shows."""
    lists: int = 0
    live_pods: dict[str, PodRecord] = field(default_factory=dict)
    obstacles: Obstacles = field(default_factory=Obstacles)
    warnings: tuple[PodWarning, ...] = ()
    asked: list[str] = field(default_factory=list)
    """UIDs of the pods whose warnings were read."""
    now: float = 0.0

    def __post_init__(self) -> None:
        self.jobs = Jobs()
        self.jobs.accept(self.body)
        keys = {"owner": lambda r: r.owner, "job": lambda r: (r.namespace, r.job), "node": lambda r: r.pod.node}
        self.pods: Store[PodRecord] = Store(keys, lambda before, after: None)
        self.nodes: Store[NodeRecord] = Store({"name": lambda r: r.node.name}, lambda before, after: None)
        self.observe = Observe(
            jobs=self.jobs,
            pods=self.pods,
            nodes=self.nodes,
            agents=lambda uid: self.agents,
            hub_seconds=lambda: 12.0,
            list_jobs=self.list_jobs,
            read_pod=self.read_pod,
            pod_warnings=self.pod_warnings,
            obstacles=self.obstacles,
            cluster="here",
            receivers=frozenset({"oncall"}),
            hub="wss://hub:8443/v1/agent#1",
            now=lambda: NOW,
            clock=lambda: self.now,
        )

    async def list_jobs(self) -> tuple[int, tuple[JobKey, ...]]:
        self.lists += 1
        return 9, tuple(JobKey(namespace="x", name=uid, uid=uid, resource_version="1") for uid in self.living)

    async def read_pod(self, namespace: str, name: str) -> PodRecord:
        if name not in self.live_pods:
            raise NotFound(name)
        return self.live_pods[name]

    async def pod_warnings(self, namespace: str, uid: str) -> tuple[PodWarning, ...]:
        self.asked.append(uid)
        return self.warnings

    def pod(self, name: str, **fields: Any) -> PodRecord:
        record = pod_record(msgspec.json.encode(pod_body(name, **fields)))
        self.pods.seen(record)
        return record

    def agent(self, name: str, run: RunState | None = None) -> None:
        report = Report(boot="b", sequence=1, incarnation=0, attempt=0, state=AgentState.QUIESCED, run=run)
        uid = f"uid-{name}"
        self.agents[uid] = Agent(pod_uid=uid, report=report, connected=True, heard_seconds_ago=0.5)

    async def seen(self) -> Observation:
        found = await self.observe("u")
        assert found is not None
        return found


def owned(uid: str = "former", cluster: str = "here") -> RunState:
    return RunState(store=StoreState.OK, owner=Owner(uid=uid, cluster=cluster))


async def test_the_plain_facts() -> None:
    sources = Sources()
    sources.pod("tiny-1-1", slot=1, incarnation=1, spec={"nodeName": "n1"})
    sources.pod("tiny-0-0", slot=0, incarnation=0)
    sources.agent("tiny-0-0")
    sources.agent("stranger")
    sources.nodes.seen(NodeRecord(uid="n", version=1, node=Node(name="n1", ready=True, unreachable=False)))
    sources.nodes.seen(NodeRecord(uid="m", version=1, node=Node(name="n2", ready=True, unreachable=False)))
    found = await sources.seen()
    world = found.world
    assert found.version == "5" and not found.unreadable
    assert [pod.name for pod in world.pods] == ["tiny-0-0", "tiny-1-1"]
    assert set(world.agents) == {"uid-tiny-0-0"}, "only agents of pods that are this job's"
    assert set(world.nodes) == {"n1"}
    assert world.now == NOW and world.cluster == "here" and world.hub_started_seconds_ago == 12.0
    assert world.owner_alive is None and world.foreign_pods == () and world.refused == ""
    assert await sources.observe("nobody") is None


async def test_pods_of_another_object_are_never_ours() -> None:
    sources = Sources()
    sources.pod("tiny-0-0", owner="old")
    sources.pod("tiny-1-1", owner="", slot=1)
    sources.pod("other-0-0", owner="old", job="other")
    sources.pod("tiny-x", slot=-1)
    world = (await sources.seen()).world
    assert world.pods == () and world.foreign_pods == ("tiny-0-0", "tiny-1-1")


async def test_a_name_that_somebody_took_is_waited_for_until_it_is_free() -> None:
    sources = Sources()
    stranger = pod_record(msgspec.json.encode(pod_body("tiny-0-0", owner="x", job="unlabelled")))
    sources.live_pods["tiny-0-0"] = stranger
    sources.obstacles.name_taken("u", "tiny-0-0")
    assert (await sources.seen()).world.foreign_pods == ("tiny-0-0",)
    assert (await sources.seen()).world.foreign_pods == ("tiny-0-0",)
    del sources.live_pods["tiny-0-0"]
    assert (await sources.seen()).world.foreign_pods == ()
    sources.live_pods["tiny-0-0"] = stranger
    assert (await sources.seen()).world.foreign_pods == (), "it was free: nobody asks again"


async def test_what_the_server_refused_is_in_the_world() -> None:
    sources = Sources()
    sources.obstacles.refuse("u", "exceeded quota")
    assert (await sources.seen()).world.refused == "exceeded quota"


class TestOwner:
    """Slot 0 says whose the run is; whether that job lives is looked up in the API server, not in a cache."""

    @pytest.mark.parametrize(("living", "alive"), [(["former"], True), (["somebody"], False)])
    async def test_a_former_owner_is_looked_up(self, living: list[str], alive: bool) -> None:
        sources = Sources(living=living)
        sources.pod("tiny-0-0")
        sources.agent("tiny-0-0", owned())
        assert (await sources.seen()).world.owner_alive is alive and sources.lists == 1

    @pytest.mark.parametrize("run", [None, owned("u"), owned(cluster="elsewhere"), RunState(store=StoreState.OK)])
    async def test_nothing_is_looked_up_when_nothing_can_follow(self, run: RunState | None) -> None:
        sources = Sources()
        sources.pod("tiny-0-0")
        sources.agent("tiny-0-0", run)
        assert (await sources.seen()).world.owner_alive is None and sources.lists == 0

    async def test_only_slot_zero_is_believed(self) -> None:
        sources = Sources()
        sources.pod("tiny-1-1", slot=1)
        sources.agent("tiny-1-1", owned())
        assert (await sources.seen()).world.owner_alive is None

    async def test_a_living_owner_is_looked_up_again_a_dead_one_is_not(self) -> None:
        sources = Sources(living=["former"])
        sources.pod("tiny-0-0")
        sources.agent("tiny-0-0", owned())
        await sources.seen()
        sources.living = []
        sources.now = OWNER_SECONDS - 1
        assert (await sources.seen()).world.owner_alive is True and sources.lists == 1
        sources.now = OWNER_SECONDS + 1
        assert (await sources.seen()).world.owner_alive is False and sources.lists == 2
        sources.now = 1e6
        assert (await sources.seen()).world.owner_alive is False and sources.lists == 2


class TestHeldUp:
    """What a pod waits for that does not start stands in events alone."""

    def waiting(self, seconds: float = HELD_UP_SECONDS + 1, waits: str = "ContainerCreating") -> Sources:
        sources = Sources()
        container = {"name": "trainer", "state": {"waiting": {"reason": waits}}}
        sources.pod(
            "tiny-0-0",
            metadata={"creationTimestamp": (NOW - timedelta(seconds=seconds)).isoformat()},
            spec={"nodeName": "n1"},
            status={"phase": "Pending", "containerStatuses": [container]},
        )
        sources.warnings = (
            self.warning("FailedMount", "not yet", 20),
            self.warning("FailedMount", "no configmap helo", 3),
        )
        return sources

    @staticmethod
    def warning(reason: str, message: str, seconds_ago: float) -> PodWarning:
        return PodWarning(reason=reason, message=message, last_timestamp=NOW - timedelta(seconds=seconds_ago))

    async def test_the_newest_warning_is_in_the_world_and_read_again_after_a_while(self) -> None:
        sources = self.waiting()
        for _ in range(2):
            assert (await sources.seen()).world.held_up == {"uid-tiny-0-0": "FailedMount: no configmap helo"}
        assert sources.asked == ["uid-tiny-0-0"]
        sources.now, sources.warnings = HELD_UP_SECONDS + 1, ()
        assert (await sources.seen()).world.held_up == {}

    async def test_an_old_warning_is_not_believed(self) -> None:
        sources = self.waiting()
        sources.warnings = (self.warning("FailedMount", "long ago", WARNING_SECONDS + 1),)
        assert (await sources.seen()).world.held_up == {}

    @pytest.mark.parametrize(("seconds", "waits"), [(2, "ContainerCreating"), (60, "ImagePullBackOff")])
    async def test_nothing_is_asked_of_a_young_pod_or_one_that_says_why(self, seconds: float, waits: str) -> None:
        sources = self.waiting(seconds, waits)
        assert (await sources.seen()).world.held_up == {} and sources.asked == []


class TestUnreadable:
    async def test_a_bad_spec_may_be_told_before_anything_exists(self) -> None:
        sources = Sources(job_body("u", 5, nodes="many"))
        found = await sources.seen()
        assert found.unreadable == "" and found.world.job.problems

    async def test_and_is_left_alone_afterwards(self) -> None:
        running = Sources(job_body("u", 5, nodes="many", status={"attempt": 1}))
        assert "spec.nodes" in (await running.seen()).unreadable
        with_pods = Sources(job_body("u", 5, nodes="many"))
        with_pods.pod("tiny-0-0")
        assert "spec.nodes" in (await with_pods.seen()).unreadable

    async def test_a_bad_status_is_always_left_alone(self) -> None:
        sources = Sources(job_body("u", 5, status={"attempt": "four"}))
        assert "status.attempt" in (await sources.seen()).unreadable
