"""A pretend cluster around the real planner: API objects with watch lag, pods that start and end, an operator that may
die at any moment, messages that are lost, late or repeated. The agents in the pods are `actor.Actor`s.
"""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from actor import STEP_SECONDS, Actor
from clock import EPOCH, Clock
from store import Store

import builders
from ciuic_api.job import JobSpec
from ciuic_api.jobstatus import TERMINAL, JobStatus
from ciuic_api.lineage import CheckpointId, on_lineage
from ciuic_api.protocol import Directive, Report
from ciuic_operator import planner
from ciuic_operator.model import Agent, CreatePod, DeletePod, Job, Plan, Pod, World

CLUSTER = builders.CLUSTER


class Violation(AssertionError):
    """An invariant of the design does not hold; the message tells what happened before."""


@dataclass
class Network:
    """Between pods and operator. Each message is lost, late or repeated with these chances."""

    loss: float = 0.0
    repeat: float = 0.0
    delay_seconds: float = 0.05
    cut: set[str] = field(default_factory=set)
    """Pod UIDs whose messages do not pass."""


@dataclass
class Operator:
    """One life of the operator process: what it remembers is gone with it."""

    pods: dict[str, Pod] = field(default_factory=dict)
    reports: dict[str, tuple[Report, float]] = field(default_factory=dict)
    directives: dict[str, Directive] = field(default_factory=dict)
    busy: bool = False


@dataclass
class Cluster:
    seed: int
    spec: JobSpec
    random: Random = field(init=False)
    clock: Clock = field(default_factory=Clock)
    store: Store = field(default_factory=Store)
    network: Network = field(default_factory=Network)
    status: JobStatus = field(default_factory=JobStatus)
    version: int = 0
    pods: dict[str, Pod] = field(default_factory=dict)
    actors: dict[str, Actor] = field(default_factory=dict)
    operator: Operator | None = None
    watch_lag_seconds: float = 0.2
    crash_next: str | None = None
    """after-persist | after-act: the operator's next pass with an urgent plan ends there."""
    names: set[str] = field(default_factory=set)
    faults: int = 0
    """Injected faults that may cost a restart."""
    corrupt: set[CheckpointId] = field(default_factory=set)
    """Checkpoints in the store whose shards fail their checksum."""
    story: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.start_operator()
        self._collectives()

    @property
    def steps(self) -> int:
        assert self.spec.training is not None
        return self.spec.training.steps

    def _collectives(self) -> None:
        """One step for the attempt whose ranks stand ready in every slot; a missing one holds all."""
        groups: dict[int, dict[int, Actor]] = {}
        for actor in list(self.actors.values()):
            ranks = actor.ranks
            if not actor.gone and ranks is not None and ranks.alive and ranks.ready:
                groups.setdefault(ranks.attempt, {})[actor.slot] = actor
        for group in groups.values():
            step = min(actor.ranks.step for actor in group.values() if actor.ranks)
            if len(group) == self.spec.nodes and step < self.steps:
                for actor in group.values():
                    actor.completed(step + 1)
        self.clock.after(STEP_SECONDS * self.random.uniform(0.8, 1.2), self._collectives)

    # --- the operator's process -------------------------------------------------------------------------------

    def start_operator(self) -> None:
        """A live list of the pods, no reports: agents connect within seconds."""
        self.operator = operator = Operator(pods=dict(self.pods))
        self.note("operator starts")
        self._tick(operator)

    def stop_operator(self) -> None:
        self.operator = None
        self.note("operator gone")

    def _tick(self, operator: Operator) -> None:
        if self.operator is operator:
            self.reconcile(operator)
            self.clock.after(0.25, lambda: self._tick(operator))

    def world(self, operator: Operator) -> World:
        agents = {
            uid: Agent(
                pod_uid=uid, report=report, connected=at > self.clock.now - 3.0, heard_seconds_ago=self.clock.now - at
            )
            for uid, (report, at) in operator.reports.items()
        }
        job = Job(
            namespace="team",
            name="tiny",
            uid=builders.UID,
            generation=1,
            created_at=EPOCH,
            spec=self.spec,
            status=self.status,
            watchdog=True,
        )
        return World(
            now=self.clock.datetime, job=job, pods=tuple(operator.pods.values()), agents=agents, cluster=CLUSTER
        )

    def reconcile(self, operator: Operator) -> None:
        """Observe, plan, persist, act, tell: as `reconcile` and `execute` do it."""
        plan = planner.plan(self.world(operator))
        if plan.status != self.status:
            self.persist(plan)
            if plan.urgent and self.crash_next == "after-persist":
                self.crash_next = None
                self.stop_operator()
                self.clock.after(self.random.uniform(0.5, 10), self.start_operator)
                return
        for action in plan.actions:
            if isinstance(action, CreatePod):
                self.create_pod(operator, action)
            elif isinstance(action, DeletePod):
                self.delete_pod(action.uid)
        if plan.urgent and self.crash_next == "after-act":
            self.crash_next = None
            self.stop_operator()
            self.clock.after(self.random.uniform(0.5, 10), self.start_operator)
            return
        for uid, directive in plan.directives.items():
            if operator.directives.get(uid) != directive:
                operator.directives[uid] = directive
                self.tell(uid, directive)

    def persist(self, plan: Plan) -> None:
        before, after = self.status, plan.status
        if after.attempt < before.attempt or after.next_incarnation < before.next_incarnation:
            raise Violation(f"a number went back: {before.attempt}->{after.attempt}")
        if before.state in TERMINAL and after.state is not before.state:
            raise Violation(f"{before.state} is not the end: {after.state}")
        if after.attempt > before.attempt:
            self.note(f"attempt {after.attempt}: {plan.reason} {plan.message}")
            if before.released and before.attempt > 0 and after.restarts.total > self.faults:
                raise Violation(f"{after.restarts.total} restarts for {self.faults} faults: {plan.message}")
        if after.released and not before.released:
            self.check_release(plan)
        if after.state is not before.state:
            self.note(f"{after.state}: {plan.message}")
        self.status, self.version = after, self.version + 1

    def check_release(self, plan: Plan) -> None:
        """What the attempt starts from is whole, of one identity, and not older than anything that was committed."""
        status = plan.status
        self.note(f"attempt {status.attempt} starts from {status.restored}")
        known = tuple(self.store.attempts.values())
        parent = self.status.parent
        committed = on_lineage(self.store.manifests - self.corrupt, parent, known) if parent is not None else []
        if status.restored is None:
            if self.status.last_committed is not None or committed:
                raise Violation(f"started at step 0 although {committed} was committed")
            return
        chosen = CheckpointId(status.restored.step, status.restored.attempt)
        if committed and chosen.step < committed[0].step and self.store.up:
            raise Violation(f"restored {chosen} although {committed[0]} was committed")
        for uid, directive in plan.directives.items():
            if directive.restore is None:
                raise Violation(f"a directive without restore: {directive}")
            actor = self.actors[uid]
            held = chosen in actor.memory
            if directive.restore.tier == "memory" and not held and chosen not in self.store.manifests:
                raise Violation(f"{chosen} is not in the memory of {self.pods[uid].name}")

    def check_start(self, actor: Actor, directive: Directive) -> None:
        """Reachable pods run one attempt; each starts an attempt once; what it starts from it has."""
        wanted = directive.restore.checkpoint if directive.restore else None
        if actor.started >= directive.attempt:
            raise Violation(f"attempt {directive.attempt} is started twice in {actor.uid}")
        if wanted is not None and wanted not in actor.memory:
            raise Violation(f"{actor.uid} starts from {wanted}, which it does not have")
        if not self.status.released or self.status.attempt != directive.attempt:
            raise Violation(f"{actor.uid} starts attempt {directive.attempt}, which is not persisted as released")
        restored = self.status.restored
        if (None if restored is None else CheckpointId(restored.step, restored.attempt)) != wanted:
            raise Violation(f"{actor.uid} starts from {wanted}, the job from {restored}")
        for uid, other in self.actors.items():
            reachable = uid not in self.network.cut and not self.pods[uid].deleting and not other.gone
            if reachable and other.ranks is not None and other.ranks.alive and other.ranks.attempt < directive.attempt:
                raise Violation(f"{uid} still runs attempt {other.ranks.attempt} when {directive.attempt} starts")

    def check_deleter(self, actor: Actor) -> None:
        """Only the attempt that the operator confirmed a moment ago deletes checkpoints."""
        if actor.uid in self.network.cut and self.clock.now - actor.heard_at >= 5.0:
            raise Violation(f"{actor.uid} deletes while it is cut off")

    # --- pods -------------------------------------------------------------------------------------------------

    def create_pod(self, operator: Operator, action: CreatePod) -> None:
        name = f"tiny-{action.slot}-{action.incarnation}"
        if name in self.names:
            raise Violation(f"pod {name} is created twice")
        self.names.add(name)
        uid = f"uid-{name}"
        pod = builders.pod(action.slot, action.incarnation, uid=uid, phase="Pending")
        self.pods[uid] = pod
        operator.pods[uid] = pod  # the answer to the creation, before any watch event
        self.clock.after(self.random.uniform(0.5, 4.0), lambda: self.pod_runs(uid))

    def pod_runs(self, uid: str) -> None:
        pod = self.pods.get(uid)
        if pod is None or pod.deleting:
            return
        self.change_pod(replace(pod, phase="Running"))
        self.actors[uid] = Actor(self, uid, pod.slot, pod.incarnation)
        self.actors[uid].boot()

    def change_pod(self, pod: Pod) -> None:
        self.pods[pod.uid] = pod
        self._show(pod.uid)

    def delete_pod(self, uid: str, grace_seconds: float | None = None) -> None:
        pod = self.pods.get(uid)
        if pod is None or pod.deleting:
            return
        self.change_pod(replace(pod, deleting=True))
        actor = self.actors.get(uid)
        if actor is not None:
            actor.terminate()
        self.clock.after(
            self.random.uniform(0.2, 5.0) if grace_seconds is None else grace_seconds, lambda: self._gone(uid)
        )

    def agent_exits(self, uid: str) -> None:
        """With code 0: the pod is done, unless it is being deleted anyway."""
        pod = self.pods.get(uid)
        if pod is not None and not pod.deleting:
            self.change_pod(replace(pod, phase="Succeeded"))

    def _gone(self, uid: str) -> None:
        self.pods.pop(uid, None)
        actor = self.actors.pop(uid, None)
        if actor is not None:
            actor.kill()
        self._show(uid)

    def _show(self, uid: str) -> None:
        """The watch brings the change to the operator of that moment, later."""
        operator = self.operator

        def event() -> None:
            if operator is None or self.operator is not operator:
                return
            pod = self.pods.get(uid)
            if pod is None:
                operator.pods.pop(uid, None)
                operator.reports.pop(uid, None)
            else:
                operator.pods[uid] = pod

        self.clock.after(self.random.uniform(0, self.watch_lag_seconds), event)

    # --- messages ---------------------------------------------------------------------------------------------

    def report(self, uid: str, report: Report) -> None:
        """From an agent to the operator, and the directive back as the reply."""

        def arrive() -> None:
            operator = self.operator
            if operator is None or uid in self.network.cut:
                return
            known = operator.reports.get(uid)
            if known is None or (known[0].boot, known[0].sequence) != (report.boot, report.sequence):
                if known is not None and known[0].boot == report.boot and known[0].sequence > report.sequence:
                    return
                operator.reports[uid] = (report, self.clock.now)
            directive = operator.directives.get(uid)
            if directive is not None:
                self.tell(uid, directive)

        for _ in range(self._copies()):
            self.clock.after(self._delay(), arrive)

    def tell(self, uid: str, directive: Directive) -> None:
        def arrive() -> None:
            actor = self.actors.get(uid)
            if actor is not None and uid not in self.network.cut:
                actor.hear(directive)

        for _ in range(self._copies()):
            self.clock.after(self._delay(), arrive)

    def _copies(self) -> int:
        if self.random.random() < self.network.loss:
            return 0
        return 2 if self.random.random() < self.network.repeat else 1

    def _delay(self) -> float:
        return self.random.expovariate(1 / self.network.delay_seconds) if self.network.delay_seconds else 0.0

    def note(self, text: str) -> None:
        self.story.append(f"{self.clock.now:8.2f} {text}")

    def tell_story(self) -> str:
        return "\n".join(self.story[-60:])


def make_spec(nodes: int, steps: int, **checkpoint: Any) -> JobSpec:
    return builders.spec(
        nodes, training={"steps": steps}, checkpoint={"path": "s3://ckpt/runs", "run": "team/tiny"} | checkpoint
    )
