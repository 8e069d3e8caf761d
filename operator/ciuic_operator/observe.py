"""What is known of one job, gathered into one frozen World. Called by `reconcile` before each decision.

Everything comes parsed from the caches and the hub; the only calls made here are the reads that must be live: whether a
run's former owner still lives, whether a pod that took one of our names is still there, and what holds up a pod that does
not start, which stands in events alone.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from .errors import NotFound
from .jobs import Jobs
from .kube import JobKey, PodWarning
from .model import Agent, Job, Node, Pod, World
from .objects import NO_SLOT, NodeRecord, PodRecord
from .obstacles import Obstacles
from .parse import Parsed
from .watches import Store

OWNER_SECONDS = 5.0
"""How long an answer `the owner lives` is believed. A UID that is gone never comes back."""

STARTING_REASONS = frozenset({"", "ContainerCreating", "PodInitializing"})
HELD_UP_SECONDS = 8.0
"""A pod on a node that has not started for this long is asked after, and again after as long."""
WARNING_SECONDS = 150.0
"""A warning is believed this long: the kubelet repeats it every two minutes at least while it holds."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    world: World
    version: str
    """resourceVersion that the decision rests on."""
    unreadable: str = ""
    """A sentence when the job must be left alone, because what it says of existing pods or attempts is not known."""
    status_unreadable: bool = False


class Observe:
    def __init__(
        self,
        *,
        jobs: Jobs,
        pods: Store[PodRecord],
        nodes: Store[NodeRecord],
        agents: Callable[[str], Mapping[str, Agent]],
        hub_seconds: Callable[[], float],
        list_jobs: Callable[[], Awaitable[tuple[int, tuple[JobKey, ...]]]],
        read_pod: Callable[[str, str], Awaitable[PodRecord]],
        pod_warnings: Callable[[str, str], Awaitable[tuple[PodWarning, ...]]],
        obstacles: Obstacles,
        cluster: str,
        receivers: frozenset[str],
        hub: str,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = jobs
        self._pods = pods
        self._nodes = nodes
        self._agents = agents
        self._hub_seconds = hub_seconds
        self._list_jobs = list_jobs
        self._read_pod = read_pod
        self._pod_warnings = pod_warnings
        self._obstacles = obstacles
        self._cluster = cluster
        self._receivers = receivers
        self._hub = hub
        self._now = now
        self._clock = clock
        self._owners: dict[str, tuple[bool, float]] = {}
        self._asked: dict[str, tuple[dict[str, str], float]] = {}
        """By job: what was found out of a pod that does not start, and when."""

    async def __call__(self, uid: str) -> Observation | None:
        """None when the job does not exist any more."""
        parsed = self._jobs.get(uid)
        if parsed is None:
            return None
        pods = tuple(
            sorted(
                (r.pod for r in self._pods.by("owner", uid) if NO_SLOT not in (r.pod.slot, r.pod.incarnation)),
                key=lambda pod: (pod.slot, pod.incarnation),
            )
        )
        heard = self._agents(uid)
        world = World(
            now=self._now(),
            job=parsed.job,
            pods=pods,
            agents={pod.uid: heard[pod.uid] for pod in pods if pod.uid in heard},
            nodes=self._nodes_of(pods),
            cluster=self._cluster,
            receivers=self._receivers,
            refused=self._obstacles.refused(uid),
            hub=self._hub,
            hub_started_seconds_ago=self._hub_seconds(),
        )
        world = replace(
            world,
            owner_alive=await self._owner_alive(world),
            foreign_pods=await self._foreign_pods(parsed.job),
            held_up=await self._held_up(world),
        )
        return Observation(
            world=world,
            version=parsed.version,
            unreadable=_unreadable(parsed, world),
            status_unreadable=bool(parsed.status_unreadable),
        )

    def _nodes_of(self, pods: Iterable[Pod]) -> dict[str, Node]:
        names = {pod.node for pod in pods if pod.node is not None}
        return {name: record.node for name in names for record in self._nodes.by("name", name)}

    async def _owner_alive(self, world: World) -> bool | None:
        """Asked only when slot 0 says that another job of this cluster owns the run."""
        agent = world.heard.get(0)
        run = agent.report.run if agent is not None else None
        owner = run.owner if run is not None else None
        if owner is None or owner.uid == world.job.uid or owner.cluster != world.cluster:
            return None
        known = self._owners.get(owner.uid)
        if known is not None and (not known[0] or self._clock() - known[1] < OWNER_SECONDS):
            return known[0]
        _, keys = await self._list_jobs()
        alive = any(key.uid == owner.uid for key in keys)
        self._owners[owner.uid] = (alive, self._clock())
        return alive

    async def _held_up(self, world: World) -> dict[str, str]:
        """Of one pod: what holds up many is mostly the same."""
        job = world.job
        pod = next((pod for _, pod in sorted(world.current.items()) if _does_not_start(pod, world.now)), None)
        if pod is None:
            self._asked.pop(job.uid, None)
            return {}
        known = self._asked.get(job.uid)
        if known is not None and self._clock() - known[1] < HELD_UP_SECONDS:
            return known[0]
        dated = [
            (warning.last_timestamp, f"{warning.reason}: {warning.message}")
            for warning in await self._pod_warnings(job.namespace, pod.uid)
            if warning.last_timestamp is not None
            and (world.now - warning.last_timestamp).total_seconds() < WARNING_SECONDS
        ]
        found = {pod.uid: max(dated)[1]} if dated else {}
        self._asked[job.uid] = found, self._clock()
        return found

    async def _foreign_pods(self, job: Job) -> tuple[str, ...]:
        """Pods that carry this job's name but belong to another object, and others that have a name we wanted."""
        foreign = {r.pod.name for r in self._pods.by("job", (job.namespace, job.name)) if r.owner != job.uid}
        for name in sorted(self._obstacles.taken(job.uid) - foreign):
            try:
                pod = await self._read_pod(job.namespace, name)
            except NotFound:
                self._obstacles.name_free(job.uid, name)
                continue
            if pod.owner == job.uid:
                self._obstacles.name_free(job.uid, name)
            else:
                foreign.add(name)
        return tuple(sorted(foreign))


def _does_not_start(pod: Pod, now: datetime) -> bool:
    """On a node, and nothing in its status says why it has not started there."""
    waits = pod.phase == "Pending" and pod.node is not None and pod.waiting_reason in STARTING_REASONS
    return waits and pod.created_at is not None and (now - pod.created_at).total_seconds() > HELD_UP_SECONDS


def _unreadable(parsed: Parsed, world: World) -> str:
    if parsed.status_unreadable:
        return parsed.status_unreadable
    # Before anything exists the planner may say what is wrong; afterwards it would judge pods by a spec that is none.
    if parsed.spec_unreadable and (world.pods or parsed.job.status.attempt > 0):
        return parsed.spec_unreadable
    return ""
