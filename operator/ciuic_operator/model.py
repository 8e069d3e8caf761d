"""What is known at one instant (World) and what is decided (Plan). Frozen values, no behaviour beyond look-ups.

Built by `observe`, read by `planner`, carried out by `execute`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from ciuic_api.job import JobSpec
from ciuic_api.jobstatus import JobStatus
from ciuic_api.protocol import Directive, Report
from ciuic_api.reasons import Reason


@dataclass(frozen=True, kw_only=True)
class Job:
    namespace: str
    name: str
    uid: str
    generation: int
    created_at: datetime
    spec: JobSpec
    """With the annotation's checkpoint path and the default run filled in."""
    status: JobStatus
    """As last persisted; what could not be read of it is an InvalidSpec problem, never a fresh start."""
    watchdog: bool
    """Whether the label or a spec.watchdog block turns restarts on."""
    take_over: str = ""
    """UID named in the annotation ciuic.io/take-over-run."""
    deleting: bool = False
    problems: tuple[tuple[Reason, str], ...] = ()
    """What makes the spec impossible to run, found while parsing."""


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One rank pod of the job, living or ending."""

    name: str
    uid: str
    slot: int
    incarnation: int
    phase: str = "Pending"
    """Pending | Running | Succeeded | Failed | Unknown"""
    node: str | None = None
    deleting: bool = False
    created_at: datetime | None = None
    waiting_reason: str = ""
    """Of the trainer container: ContainerCreating, ImagePullBackOff, CreateContainerConfigError, ..."""
    waiting_message: str = ""
    unschedulable: str = ""
    """The scheduler's message while PodScheduled is False."""
    status_reason: str = ""
    """Pod status reason, for example Evicted; or DisruptionTarget's reason."""
    exit_message: str = ""
    restarts: int = 0
    """Restarts of the trainer container."""
    hub: str = ""
    """Where its agent was told to connect, and whom to trust."""

    @property
    def alive(self) -> bool:
        return not self.deleting and self.phase in ("Pending", "Running", "Unknown")


@dataclass(frozen=True, kw_only=True)
class Agent:
    """What the hub knows of one pod's agent."""

    pod_uid: str
    report: Report
    connected: bool
    heard_seconds_ago: float


@dataclass(frozen=True, kw_only=True)
class Node:
    name: str
    ready: bool
    unreachable: bool
    """Carries the unreachable or not-ready NoExecute taint."""


@dataclass(frozen=True, kw_only=True)
class World:
    now: datetime
    job: Job
    pods: tuple[Pod, ...] = ()
    agents: Mapping[str, Agent] = field(default_factory=dict)
    """By pod UID. Only of pods that are this job's."""
    nodes: Mapping[str, Node] = field(default_factory=dict)
    cluster: str = ""
    """Identity of this cluster: the UID of its kube-system namespace."""
    receivers: frozenset[str] = frozenset()
    """Names of the alert receivers that the chart defines."""
    owner_alive: bool | None = None
    """Whether a job with the UID named by the run's owner lives in this cluster, from a live read; None: not asked."""
    foreign_pods: tuple[str, ...] = ()
    """Names of pods of ours that exist under another owner UID: an older job of this name still ends."""
    refused: str = ""
    """The server's words when it refused a pod of this job last (quota, an admission policy); empty since it took one."""
    held_up: Mapping[str, str] = field(default_factory=dict)
    """By pod UID: what the kubelet said lately of a pod that it does not get to start."""
    hub: str = ""
    """Where this operator's hub is, and its authority, as pods are told them."""
    hub_started_seconds_ago: float = 1e9
    """How long this operator process has been listening. Shortly after its start, silence means nothing."""

    @cached_property
    def current(self) -> Mapping[int, Pod]:
        """The living pod of each slot: the newest incarnation that neither ended nor is being deleted."""
        current: dict[int, Pod] = {}
        for pod in self.pods:
            if pod.alive and (pod.slot not in current or pod.incarnation > current[pod.slot].incarnation):
                current[pod.slot] = pod
        return current

    @cached_property
    def heard(self) -> Mapping[int, Agent]:
        """The agent of each slot's living pod, if it has been heard since this operator started."""
        agents = self.agents
        return {slot: agents[pod.uid] for slot, pod in self.current.items() if pod.uid in agents}

    @cached_property
    def reports(self) -> Mapping[int, Report]:
        """The newest report of each slot's living pod."""
        return {slot: agent.report for slot, agent in self.heard.items()}

    @cached_property
    def elsewhere(self) -> tuple[Pod, ...]:
        """Living pods whose agents look for another installation of the operator: they will never connect to this one."""
        return tuple(pod for pod in self.current.values() if pod.hub != self.hub and pod.uid not in self.agents)

    def with_status(self, status: JobStatus) -> "World":
        """The same instant with another status. What was looked up of pods and agents is taken along, not looked up again."""
        other = replace(self, job=replace(self.job, status=status))
        other.__dict__.update({name: self.__dict__[name] for name in LOOKED_UP if name in self.__dict__})
        return other


LOOKED_UP = ("current", "heard", "reports")


@dataclass(frozen=True, kw_only=True)
class CreatePod:
    slot: int
    incarnation: int


@dataclass(frozen=True, kw_only=True)
class DeletePod:
    name: str
    uid: str
    """Precondition: never delete a namesake."""
    grace_seconds: int | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class EmitEvent:
    """An event on the job. The execution drops repeats of the same reason and message."""

    reason: Reason
    message: str
    warning: bool = False


@dataclass(frozen=True, kw_only=True)
class DeleteJob:
    """The job's time to live after its end is over."""


Action = CreatePod | DeletePod | EmitEvent | DeleteJob


@dataclass(frozen=True, kw_only=True)
class Plan:
    reason: Reason
    message: str
    status: JobStatus
    """The whole status as it should be. Written before any action, with the resourceVersion it was decided on."""
    urgent: bool = False
    """Whether status must be written now and succeed before actions and directives; otherwise it may be coalesced."""
    actions: tuple[Action, ...] = ()
    directives: Mapping[str, Directive] = field(default_factory=dict)
    """By pod UID. A pod that is not named here gets no directive."""
    recheck_after: float = 30.0
    """Seconds after which to plan again if nothing wakes the job before."""


PodBody = dict[str, Any]
