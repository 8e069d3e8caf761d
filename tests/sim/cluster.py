"""A pretend cluster around the real planner: API objects with watch lag, pods that start and end, an operator that may
die at any moment, messages that are lost, late or repeated. The agents in the pods are `actor.Actor`s.
"""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from actor import STEP_SECONDS, Actor
from clock import EPOCH, Clock
from store import Store
from truth import Truth, Violation, identity

import builders
from ciuic_api.job import JobSpec
from ciuic_api.jobstatus import JobStatus
from ciuic_api.lineage import CheckpointId
from ciuic_api.protocol import Directive, Report
from ciuic_operator import planner
from ciuic_operator.model import Agent, CreatePod, DeletePod, Job, Plan, Pod, World


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
    unreachable: dict[str, Actor] = field(default_factory=dict)
    """In pods that Kubernetes gave up: nobody hears them and they hear nobody, but the store and each other they reach."""
    truth: Truth = field(default_factory=Truth)
    operator: Operator | None = None
    watch_lag_seconds: float = 0.2
    memory_every: int = 2
    persist_every: int = 6
    """Steps between copies into memory, and between those of them that are uploaded."""
    upload_seconds: tuple[float, float] = (0.3, 2.5)
    crash_next: str | None = None
    """after-persist | after-act: the operator's next pass with an urgent plan ends there."""
    names: set[str] = field(default_factory=set)
    faults: int = 0
    """Injected faults that may cost a restart."""
    corrupt: set[CheckpointId] = field(default_factory=set)
    """Checkpoints in the store whose shards fail their checksum."""
    deleted: list[tuple[str, CheckpointId]] = field(default_factory=list)
    """By retention, and in which pod."""
    crash_in_copy: bool = False
    """When the next slot has copied a step, the rank of one that has not is killed."""
    reasons: set[str] = field(default_factory=set)
    """All that the status has given."""
    story: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.start_operator()
        self._collectives()

    def hold_an_earlier_run(self, steps: tuple[int, ...]) -> None:
        """Attempt 1 of a job object that is gone wrote checkpoints of these steps."""
        self.store.hold_an_earlier_job(steps, self.spec.nodes)
        self.truth.released.append((1, None))

    @property
    def steps(self) -> int:
        assert self.spec.training is not None
        return self.spec.training.steps

    def _collectives(self) -> None:
        """One step for the attempt whose ranks stand ready in every slot; a missing one holds all."""
        groups: dict[int, dict[int, Actor]] = {}
        for actor in (*self.actors.values(), *self.unreachable.values()):
            ranks = actor.ranks
            if not actor.gone and ranks is not None and ranks.alive and ranks.ready and not ranks.hangs_at:
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
            now=self.clock.datetime,
            job=job,
            pods=tuple(operator.pods.values()),
            agents=agents,
            cluster=builders.CLUSTER,
            owner_alive=False,  # an earlier job's object is gone
        )

    def reconcile(self, operator: Operator) -> None:
        """Observe, plan, persist, act, tell: as `reconcile` and `execute` do it."""
        world = self.world(operator)
        plan = planner.plan(world)
        if plan.status != self.status:
            self.persist(world, plan)
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

    def persist(self, world: World, plan: Plan) -> None:
        self.truth.check(self, world, plan)
        before, after = self.status, plan.status
        if after.attempt > before.attempt:
            self.note(f"attempt {after.attempt}: {plan.reason} {plan.message}")
        if after.released and not before.released:
            self.note(f"attempt {after.attempt} starts from {identity(after.restored)}")
        if after.state is not before.state:
            self.note(f"{after.state}: {plan.message}")
        if after.reason != before.reason:
            self.reasons.add(after.reason)
        self.status, self.version = after, self.version + 1

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

    def lose_pod(self, uid: str) -> None:
        """Its node is unreachable: Kubernetes gives the pod up, and its processes live on."""
        pod = self.pods.get(uid)
        if pod is None or pod.deleting:
            return
        actor = self.actors.pop(uid, None)
        if actor is not None:
            self.unreachable[uid] = actor
        self.change_pod(replace(pod, deleting=True))
        self.clock.after(self.random.uniform(0.2, 30.0), lambda: self._gone(uid))

    def copied(self, actor: Actor) -> None:
        """A slot has copied a step into its memory."""
        if not self.crash_in_copy:
            return
        mine = max(actor.memory)
        late = [other for other in self.actors.values() if other.uid != actor.uid and mine not in other.memory]
        if late and self.random.choice(late).kill_rank():
            self.crash_in_copy = False
            self.faults += 1
            self.note(f"a rank is killed after {actor.uid} copied {mine}, with {len(late)} slots left to copy it")

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
            operator, actor = self.operator, self.actors.get(uid)
            if operator is None or uid in self.network.cut or actor is None:
                return
            if report.boot != actor.boot_id:
                return  # a connection ends with its process
            known = operator.reports.get(uid)
            if known is not None and known[0].boot == report.boot and known[0].sequence > report.sequence:
                return
            if known is None or (known[0].boot, known[0].sequence) != (report.boot, report.sequence):
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


def make_spec(nodes: int, steps: int, **fields: Any) -> JobSpec:
    checkpoint = {"path": "s3://ckpt/runs", "run": "team/tiny"}
    return builders.spec(nodes, training={"steps": steps}, checkpoint=checkpoint, **fields)
