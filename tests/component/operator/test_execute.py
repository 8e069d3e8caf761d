"""Persist, then publish and act: the order, and what happens when a step does not succeed."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from ciuic_api.jobstatus import JobStatus, RestartCounts, State
from ciuic_api.protocol import AgentState, Directive, Report
from ciuic_api.reasons import Reason
from ciuic_operator.errors import AlreadyExists, Conflict, Forbidden, KubeError, NotFound, Unavailable
from ciuic_operator.events import Events
from ciuic_operator.execute import HOOK_EXIT_CODE, PROGRESS_SECONDS, TRANSITION_SECONDS, Execute
from ciuic_operator.jobs import Jobs
from ciuic_operator.metrics import Metrics
from ciuic_operator.model import Action, Agent, CreatePod, DeleteJob, DeletePod, EmitEvent, Job, Plan, World
from ciuic_operator.objects import PodRecord, pod_record
from ciuic_operator.obstacles import Obstacles
from ciuic_operator.settings import ExitHook
from ciuic_operator.watches import Store
from component_bodies import job_body, pod_body

NOW = datetime(2026, 11, 30, tzinfo=UTC)
DIRECTIVE = Directive(attempt=1, run=True, slot=0)


class Exited(BaseException):
    """The process has ended itself."""


@dataclass
class Cluster:
    """An API server of one job, and everything that Execute talks to. `done` is the order in which things happened."""

    body: dict[str, Any] = field(default_factory=lambda: job_body("u", 5, status={"state": "Pending"}))
    done: list[str] = field(default_factory=list)
    failing: dict[str, Exception] = field(default_factory=dict)
    """By call."""
    existing: dict[str, PodRecord] = field(default_factory=dict)
    now: float = 1000.0
    busy: int = 0
    busiest: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    published: dict[str, Mapping[str, Directive]] = field(default_factory=dict)
    jobs: Jobs = field(default_factory=Jobs)
    obstacles: Obstacles = field(default_factory=Obstacles)
    shown: list[Job] = field(default_factory=list)
    """What the alerts were told of."""
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.jobs.accept(self.body)
        self.pods: Store[PodRecord] = Store({"owner": lambda record: record.owner}, lambda before, after: None)

    def execute(self, hook: ExitHook | None = None) -> Execute:
        made = Execute(
            kube=self,
            jobs=self.jobs,
            pods=self.pods,
            render=lambda job, slot, incarnation: pod_body(
                f"{job.name}-{slot}-{incarnation}", 50 + incarnation, job.uid, slot=slot, incarnation=incarnation
            ),
            publish=self.publish,
            obstacles=self.obstacles,
            events=Events(self.create_event, lambda: NOW, lambda: self.now),
            metrics=self.metrics,
            persisted=self.shown.append,
            exit_hook=hook,
            end_process=self.end_process,
            clock=lambda: self.now,
        )
        self.now += 100  # the process has been running for a while
        return made

    def _do(self, what: str, call: str) -> None:
        if call in self.failing:
            raise self.failing[call]
        self.done.append(what)

    async def get_job(self, namespace: str, name: str) -> dict[str, Any]:
        self._do("read job", "get_job")
        return self.body

    async def write_job_status(self, namespace: str, name: str, version: str, status: dict[str, Any]) -> dict[str, Any]:
        if version != self.body["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified")
        self._do("write status", "write_job_status")
        self.body = job_body("u", int(version) + 1, self.body["metadata"]["name"], status=status)
        self.body["metadata"] |= {"deletionTimestamp": "x"} if "deleting" in self.failing else {}
        return self.body

    async def delete_job(self, namespace: str, name: str, uid: str) -> None:
        self._do(f"delete job {uid}", "delete_job")

    async def get_pod(self, namespace: str, name: str) -> PodRecord:
        if name not in self.existing:
            raise NotFound(name)
        return self.existing[name]

    async def create_pod(self, namespace: str, body: dict[str, Any]) -> PodRecord:
        name = body["metadata"]["name"]
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        await asyncio.sleep(0)
        self.busy -= 1
        if name in self.existing:
            raise AlreadyExists(f'pods "{name}" already exists')
        self._do(f"create {name}", f"create {name}" if f"create {name}" in self.failing else "create_pod")
        return pod_record(msgspec.json.encode(body))

    async def delete_pod(self, namespace: str, name: str, uid: str, grace_seconds: int | None) -> None:
        self._do(f"delete {name} {uid} {grace_seconds}", "delete_pod")

    async def create_event(self, namespace: str, body: dict[str, Any]) -> None:
        self._do(f"event {body['reason']}", "create_event")
        self.events.append(body)

    def publish(self, job_uid: str, directives: Mapping[str, Directive]) -> None:
        self.done.append("publish")
        self.published[job_uid] = directives

    def end_process(self, code: int) -> None:
        assert code == HOOK_EXIT_CODE
        raise Exited

    @property
    def world(self) -> World:
        parsed = self.jobs.get("u")
        assert parsed is not None
        return World(now=NOW, job=parsed.job)

    @property
    def version(self) -> str:
        parsed = self.jobs.get("u")
        assert parsed is not None
        return parsed.version

    async def carry_out(self, plan: Plan, execute: Execute | None = None, world: World | None = None) -> float:
        return await (execute or self.execute())(world or self.world, self.version, plan)


def plan(*actions: Action, urgent: bool = False, recheck: float = 30.0, **status: Any) -> Plan:
    return Plan(
        reason=Reason.CREATING_PODS,
        message="m",
        status=JobStatus(**status),
        urgent=urgent,
        actions=actions,
        directives={"pod": DIRECTIVE},
        recheck_after=recheck,
    )


async def test_persist_comes_first() -> None:
    cluster = Cluster()
    actions = (CreatePod(slot=0, incarnation=0), DeletePod(name="old", uid="o", grace_seconds=0), DeleteJob())
    await cluster.carry_out(plan(*actions, urgent=True, next_incarnation=1))
    assert cluster.done[:2] == ["write status", "publish"]
    assert sorted(cluster.done[2:]) == ["create tiny-0-0", "delete job u", "delete old o 0"]
    assert cluster.body["status"]["nextIncarnation"] == 1


async def test_after_a_conflict_nothing_is_done() -> None:
    cluster = Cluster()
    stale = cluster.world
    cluster.body = job_body("u", 6)
    with pytest.raises(Conflict):
        await cluster.execute()(stale, "5", plan(CreatePod(slot=0, incarnation=0), urgent=True, attempt=2))
    assert cluster.done == [] and cluster.published == {}


@pytest.mark.parametrize(
    ("error", "kind"), [(Unavailable("timeout"), Unavailable), (NotFound("no job"), Conflict)], ids=["down", "deleted"]
)
async def test_a_write_that_fails_is_not_acted_on(error: Exception, kind: type[Exception]) -> None:
    cluster = Cluster(failing={"write_job_status": error})
    with pytest.raises(kind):
        await cluster.carry_out(plan(CreatePod(slot=0, incarnation=0), urgent=True, attempt=2))
    assert cluster.done == [] and cluster.published == {}


async def test_a_job_that_is_being_deleted_gets_no_pods() -> None:
    cluster = Cluster(failing={"deleting": Exception()})
    with pytest.raises(Conflict, match="deleted"):
        await cluster.carry_out(plan(CreatePod(slot=0, incarnation=0), urgent=True, next_incarnation=1))
    assert cluster.done == ["write status"]


@pytest.mark.parametrize("field", ["attempt", "next_incarnation", "released"])
async def test_numbers_are_persisted_whatever_the_plan_says_of_its_urgency(field: str) -> None:
    cluster = Cluster()
    execute = cluster.execute()
    await cluster.carry_out(plan(step=1), execute)
    await cluster.carry_out(plan(CreatePod(slot=0, incarnation=0), step=1, **{field: True}), execute)
    assert cluster.done[2:] == ["write status", "publish", "create tiny-0-0"]


async def test_what_a_pod_told_last_is_persisted_before_it_is_deleted() -> None:
    """For example the checkpoint that was committed while the job was being suspended."""
    cluster = Cluster()
    execute = cluster.execute()
    await cluster.carry_out(plan(step=1), execute)
    await cluster.carry_out(plan(DeletePod(name="tiny-0-0", uid="p0"), step=2), execute)
    assert cluster.done[2:] == ["write status", "publish", "delete tiny-0-0 p0 None"]


async def test_pods_without_a_write_need_a_live_read() -> None:
    cluster = Cluster()
    await cluster.carry_out(replace(plan(CreatePod(slot=0, incarnation=0)), status=cluster.world.job.status))
    assert cluster.done == ["read job", "publish", "create tiny-0-0"]


@pytest.mark.parametrize("change", [{"uid": "another"}, {"deletionTimestamp": "2026-11-30T12:00:00Z"}])
async def test_no_pod_for_a_job_that_was_deleted_or_replaced(change: dict[str, str]) -> None:
    cluster = Cluster()
    cluster.body = job_body("u", 5, meta=change)
    same = replace(plan(CreatePod(slot=0, incarnation=0)), status=cluster.world.job.status)
    with pytest.raises(Conflict):
        await cluster.carry_out(same)
    cluster.failing["get_job"] = NotFound("gone")
    with pytest.raises(Conflict):
        await cluster.carry_out(same)
    assert "create tiny-0-0" not in cluster.done and not cluster.published


async def test_a_created_pod_is_known_to_the_next_decision() -> None:
    cluster = Cluster()
    await cluster.carry_out(plan(CreatePod(slot=0, incarnation=0), urgent=True, next_incarnation=1))
    assert [record.pod.name for record in cluster.pods.by("owner", "u")] == ["tiny-0-0"]


async def test_a_pod_that_exists_already() -> None:
    """Under our own UID it is ours: the answer to its creation was lost. Under another it is not, whatever its name."""
    cluster = Cluster()
    for name, owner in (("tiny-0-0", "u"), ("tiny-1-1", "old")):
        cluster.existing[name] = pod_record(msgspec.json.encode(pod_body(name, 60, owner)))
    both = (CreatePod(slot=0, incarnation=0), CreatePod(slot=1, incarnation=1))
    await cluster.carry_out(plan(*both, urgent=True, next_incarnation=2))
    assert [record.pod.name for record in cluster.pods.by("owner", "u")] == ["tiny-0-0"]
    assert cluster.obstacles.taken("u") == {"tiny-1-1"}


async def test_a_refused_pod_is_told_in_words_that_stay_the_same() -> None:
    cluster = Cluster()
    words = 'pods "tiny-0-{}" is forbidden: exceeded quota: pods'
    for number in (0, 1):
        cluster.failing["create_pod"] = Forbidden("POST /x: 403 ...", words.format(number))
        with pytest.raises(Forbidden) as refused:
            await cluster.carry_out(
                plan(CreatePod(slot=0, incarnation=number), urgent=True, next_incarnation=number + 1)
            )
        assert str(refused.value) == "pods are refused: pods is forbidden: exceeded quota: pods"
        assert cluster.obstacles.refused("u") == "pods is forbidden: exceeded quota: pods"
    del cluster.failing["create_pod"]
    await cluster.carry_out(plan(CreatePod(slot=0, incarnation=2), urgent=True, next_incarnation=3))
    assert cluster.obstacles.refused("u") == ""


async def test_an_answer_that_never_came_is_no_refusal() -> None:
    cluster = Cluster(failing={"create_pod": Unavailable("POST /x: TimeoutError")})
    with pytest.raises(Unavailable):
        await cluster.carry_out(plan(CreatePod(slot=0, incarnation=0), urgent=True, next_incarnation=1))
    assert cluster.obstacles.refused("u") == ""
    cluster.failing["create_pod"] = Unavailable("POST /x: 500 ...", 'failed calling webhook "policy.example"')
    with pytest.raises(Unavailable):
        await cluster.carry_out(plan(CreatePod(slot=0, incarnation=1), urgent=True, next_incarnation=2))
    assert cluster.obstacles.refused("u") == 'failed calling webhook "policy.example"'


async def test_one_failed_action_does_not_hold_up_the_others() -> None:
    cluster = Cluster(failing={"create tiny-0-0": Unavailable("no answer")})
    both = (CreatePod(slot=0, incarnation=0), CreatePod(slot=1, incarnation=1))
    with pytest.raises(KubeError):
        await cluster.carry_out(plan(*both, urgent=True, next_incarnation=2))
    assert cluster.done == ["write status", "publish", "create tiny-1-1"]


@pytest.mark.parametrize("error", [NotFound("gone"), Conflict("another UID")])
async def test_a_pod_that_is_gone_already_is_deleted(error: Exception) -> None:
    cluster = Cluster(failing={"delete_pod": error})
    cluster.pods.seen(pod_record(msgspec.json.encode(pod_body("tiny-0-0", 9))))
    await cluster.carry_out(plan(DeletePod(name="tiny-0-0", uid="uid-tiny-0-0"), urgent=True))
    assert not cluster.pods.by("owner", "u")


async def test_many_pods_at_once_but_not_all() -> None:
    cluster = Cluster()
    many = tuple(CreatePod(slot=slot, incarnation=slot) for slot in range(300))
    await cluster.carry_out(plan(*many, urgent=True, next_incarnation=300))
    assert len(cluster.pods) == 300 and 32 <= cluster.busiest <= 64


async def test_an_event_is_not_repeated_for_ten_minutes() -> None:
    cluster = Cluster()
    execute = cluster.execute()
    emit = EmitEvent(reason=Reason.RANK_KILLED, message="rank 1 was killed", warning=True)
    other = EmitEvent(reason=Reason.RANK_KILLED, message="rank 0 was killed", warning=True)
    await cluster.carry_out(plan(emit), execute)
    await cluster.carry_out(plan(emit, other), execute)
    assert len(cluster.events) == 2
    cluster.now += 599
    await cluster.carry_out(plan(emit), execute)
    assert len(cluster.events) == 2
    cluster.now += 2
    await cluster.carry_out(plan(emit), execute)
    assert len(cluster.events) == 3
    event = cluster.events[0]
    assert event["type"] == "Warning" and event["reason"] == "RankKilled"
    assert event["involvedObject"]["uid"] == "u" and event["metadata"]["namespace"] == "team"
    assert event["metadata"]["name"] != cluster.events[1]["metadata"]["name"]


async def test_an_event_that_a_former_life_has_sent_is_sent() -> None:
    cluster = Cluster(failing={"create_event": AlreadyExists("events exists")})
    await cluster.carry_out(plan(EmitEvent(reason=Reason.TRAINING, message="m")))
    assert cluster.done[-1] == "publish"


class TestCoalescing:
    """Progress waits for its turn; what says something new does not."""

    async def test_pure_progress_is_written_every_five_seconds(self) -> None:
        cluster = Cluster()
        execute = cluster.execute()
        await cluster.carry_out(plan(state=State.RUNNING, step=1), execute)
        assert cluster.done.count("write status") == 1
        for seconds in (1.0, 3.9):
            cluster.now += seconds
            wait = await cluster.carry_out(plan(state=State.RUNNING, step=2), execute)
            assert cluster.done.count("write status") == 1
        assert wait == pytest.approx(PROGRESS_SECONDS - 4.9), "it comes back when its turn has come"
        cluster.now += wait
        await cluster.carry_out(plan(state=State.RUNNING, step=3), execute)
        assert cluster.done.count("write status") == 2 and cluster.body["status"]["step"] == 3

    async def test_after_a_start_not_all_jobs_are_due_at_once(self) -> None:
        cluster = Cluster()
        execute = cluster.execute()
        cluster.now -= 100
        await cluster.carry_out(plan(state=State.PENDING, ready="0/2"), execute)
        assert "write status" not in cluster.done
        await cluster.carry_out(plan(state=State.PENDING, urgent=True, attempt=1), execute)
        assert "write status" in cluster.done

    async def test_a_thousand_jobs_write_twenty_times_a_second(self) -> None:
        cluster = Cluster()
        for number in range(1000):
            cluster.jobs.accept(job_body(f"other-{number}", 5, name=f"other-{number}"))
        execute = cluster.execute()
        await cluster.carry_out(plan(state=State.RUNNING, step=1), execute)
        cluster.now += 49
        await cluster.carry_out(plan(state=State.RUNNING, step=2), execute)
        assert cluster.done.count("write status") == 1
        cluster.now += 1.1
        await cluster.carry_out(plan(state=State.RUNNING, step=2), execute)
        assert cluster.done.count("write status") == 2

    async def test_a_new_reason_is_written_at_once(self) -> None:
        cluster = Cluster()
        execute = cluster.execute()
        await cluster.carry_out(plan(reason="Training", step=1), execute)
        cluster.now += TRANSITION_SECONDS
        await cluster.carry_out(plan(reason="Restoring", step=1), execute)
        assert cluster.done.count("write status") == 2

    async def test_a_flapping_reason_does_not_flood(self) -> None:
        cluster = Cluster()
        execute = cluster.execute()
        for number in range(100):
            await cluster.carry_out(plan(reason=f"R{number % 2}"), execute)
            cluster.now += 0.02
        assert cluster.done.count("write status") == 2

    async def test_what_is_urgent_is_written_always(self) -> None:
        cluster = Cluster()
        execute = cluster.execute()
        for attempt in (1, 2, 3):
            await cluster.carry_out(plan(urgent=True, attempt=attempt), execute)
        assert cluster.done.count("write status") == 3

    async def test_an_unchanged_status_is_not_written(self) -> None:
        cluster = Cluster()
        same = replace(plan(urgent=True), status=cluster.world.job.status)
        assert await cluster.carry_out(same) == 30.0
        assert cluster.done == ["publish"]

    async def test_a_job_that_moves_is_looked_at_for_its_progress(self) -> None:
        cluster = Cluster()
        report = Report(boot="b", sequence=1, incarnation=0, attempt=1, state=AgentState.RUNNING)
        agent = Agent(pod_uid="p", report=report, connected=True, heard_seconds_ago=0.1)
        world = replace(cluster.world, agents={"p": agent})
        same = replace(plan(), status=world.job.status)
        assert await cluster.carry_out(same, world=world) == PROGRESS_SECONDS
        silent = replace(world, agents={"p": replace(agent, connected=False)})
        assert await cluster.carry_out(same, world=silent) == 30.0
        ended = replace(same, status=JobStatus(state=State.COMPLETE))
        assert await cluster.carry_out(ended, world=world) == 30.0


class TestExitHook:
    async def test_after_persist(self) -> None:
        cluster = Cluster()
        hook = ExitHook(point="after-persist")
        with pytest.raises(Exited):
            await cluster.carry_out(
                plan(CreatePod(slot=0, incarnation=0), urgent=True, attempt=1), cluster.execute(hook)
            )
        assert cluster.done == ["write status"]
        await cluster.carry_out(plan(CreatePod(slot=0, incarnation=0), urgent=True, attempt=1), cluster.execute(hook))
        assert "publish" in cluster.done, "the next life passes the point"

    async def test_after_act(self) -> None:
        cluster = Cluster()
        hook = ExitHook(point="after-act", field="nextIncarnation", number=2)
        one, two = CreatePod(slot=0, incarnation=0), CreatePod(slot=1, incarnation=1)
        await cluster.carry_out(plan(one, urgent=True, next_incarnation=1), cluster.execute(hook))
        with pytest.raises(Exited):
            await cluster.carry_out(plan(two, urgent=True, next_incarnation=2), cluster.execute(hook))
        assert cluster.done[-2:] == ["publish", "create tiny-1-1"]

    async def test_unset_it_does_nothing(self) -> None:
        cluster = Cluster()
        await cluster.carry_out(plan(CreatePod(slot=0, incarnation=0), urgent=True, attempt=1, next_incarnation=1))
        assert cluster.done == ["write status", "publish", "create tiny-0-0"]


async def test_alerts_are_shown_what_is_persisted_and_nothing_else() -> None:
    cluster = Cluster()
    execute = cluster.execute()
    await cluster.carry_out(plan(urgent=True, attempt=1), execute)
    assert [job.status.attempt for job in cluster.shown] == [0, 1]
    cluster.failing["write_job_status"] = Unavailable("the answer got lost")
    with pytest.raises(Unavailable):
        await cluster.carry_out(plan(urgent=True, attempt=2), execute)
    assert cluster.shown[-1].status.attempt == 1
    # It had been written all the same: the stream says so, and the next pass shows it.
    del cluster.failing["write_job_status"]
    cluster.jobs.accept(job_body("u", 99, status={"state": "Pending", "attempt": 2}))
    cluster.body["metadata"]["resourceVersion"] = "99"
    await cluster.carry_out(replace(plan(), status=cluster.world.job.status), execute)
    assert cluster.shown[-1].status.attempt == 2


async def test_metrics_count_attempts_and_restarts() -> None:
    cluster = Cluster()
    execute = cluster.execute()
    await cluster.carry_out(plan(urgent=True, attempt=7), execute)
    counts = RestartCounts(total=1, software=1)
    await cluster.carry_out(plan(urgent=True, attempt=8, restarts=counts), execute)
    text = cluster.metrics.text().decode()
    assert "deepseekjob_attempts_started_total 2.0" in text, "the first attempt of a resumed run counts once"
    assert 'deepseekjob_restarts_total{class="software"} 1.0' in text
    assert "deepseekjob_status_writes_total 2.0" in text
