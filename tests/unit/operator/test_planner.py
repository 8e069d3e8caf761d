"""The planner, one row per situation. A row says the situation, the reason that must be given, and what must follow."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest

from builders import (
    NOW,
    PODS,
    AgentFailure,
    AgentState,
    Attempt,
    CheckpointRef,
    JobStatus,
    LineageLink,
    Owner,
    Preflight,
    PreflightProblem,
    RankState,
    RestoreFailure,
    State,
    StoreState,
    checkpoint,
    committed,
    ended,
    job,
    pod,
    quiet,
    replace,
    report,
    restarting,
    run_state,
    status,
    trains,
    world,
)
from ciuic_api.jobstatus import Budget, LedgerEntry
from ciuic_api.protocol import RANKS_REMAIN, Report
from ciuic_api.reasons import Reason
from ciuic_operator import planner
from ciuic_operator.model import CreatePod, DeleteJob, DeletePod, EmitEvent, Plan, World

Check = Callable[[Plan], bool]


@dataclass(frozen=True)
class Row:
    name: str
    world: World
    reason: Reason
    check: Check = lambda plan: True


def unmoved(slot: int) -> RankState:
    return RankState(rank=slot, phase="step", step=17, unmoved_seconds=700.0)


def creates(*incarnations: int) -> Check:
    return lambda plan: tuple(a.incarnation for a in plan.actions if isinstance(a, CreatePod)) == incarnations


def deletes(*names: str) -> Check:
    return lambda plan: tuple(a.name for a in plan.actions if isinstance(a, DeletePod)) == names


def attempt(number: int, released: bool, state: State) -> Check:
    return lambda plan: (plan.status.attempt, plan.status.released, plan.status.state) == (number, released, state)


def says(*words: str) -> Check:
    return lambda plan: all(word in plan.message for word in words)


def runs(*slots: int) -> Check:
    return lambda plan: {d.slot for d in plan.directives.values() if d.run} == set(slots)


def restores(step: int, of: int, *tiers: str) -> Check:
    def check(plan: Plan) -> bool:
        told = sorted(plan.directives.values(), key=lambda d: d.slot)
        if plan.status.restored != CheckpointRef(step=step, attempt=of) or not plan.status.released:
            return False
        return [d.restore.tier if d.restore else "none" for d in told] == list(tiers)

    return check


def from_zero(plan: Plan) -> bool:
    return plan.status.released and plan.status.restored is None


def every(*checks: Check) -> Check:
    return lambda plan: all(check(plan) for check in checks)


def no_action(plan: Plan) -> bool:
    return not [a for a in plan.actions if not isinstance(a, EmitEvent)]


def in_two(**fields: object) -> dict[int, Report]:
    return {0: quiet(0, 2, **fields), 1: quiet(1, 2)}


FIRST = JobStatus(next_incarnation=2, state=State.PENDING, reason="WaitingForPods")
NUMBERED = status(State.PENDING, 1, released=False, reason="WaitingForAgents")
HEALTHY = world(job(status()), PODS, {0: trains(0), 1: trains(1)})
KILLED = ended(
    1, -9, failure=AgentFailure(reason="RankExited", message="", rank=1, fingerprint="k", at_seconds_ago=0.5)
)
BROKEN = ended(0, 1, failure=AgentFailure(reason="RankExited", message="", rank=0, fingerprint="b", at_seconds_ago=0.1))
ELSEWHERE = (pod(0, hub="wss://there#1"), pod(1, hub="wss://there#1"))
ONE_DEAD = {0: trains(0), 1: KILLED}


def ledger(*steps: int) -> tuple[LedgerEntry, ...]:
    return tuple(
        LedgerEntry(at="2026-11-30T11:58:00Z", reason="RankKilled", fingerprint="k", counted=True, step=s)
        for s in steps
    )


ROWS = [
    # ranks that do not move (all of it: test_hanging)
    Row(
        "ranks that stand still are asked where",
        world(job(status()), PODS, {slot: trains(slot, ranks=(unmoved(slot),)) for slot in (0, 1)}),
        Reason.STALLED,
        every(attempt(1, True, State.RUNNING), lambda p: {d.evidence for d in p.directives.values()} == {1}),
    ),
    # the beginning
    Row(
        "a new job gets all its pods at once",
        world(job()),
        Reason.CREATING_PODS,
        every(creates(0, 1), lambda p: p.status.next_incarnation == 2 and p.urgent),
    ),
    Row(
        "a quota that refuses the pods is said, and they are tried again",
        world(job(), refused="pods is forbidden: exceeded quota: pods"),
        Reason.POD_CONFIG_ERROR,
        every(creates(0, 1), says("exceeded quota"), lambda p: p.urgent),
    ),
    Row(
        "pods of a deleted namesake end first",
        world(job(), foreign_pods=("tiny-0-0",)),
        Reason.WAITING_FOR_OLD_PODS,
        every(creates(), says("tiny-0-0")),
    ),
    Row(
        "a pod that fits nowhere",
        world(job(FIRST), (pod(0, phase="Pending", unschedulable="0/1 nodes: cpu"), pod(1))),
        Reason.UNSCHEDULABLE,
        says("tiny-0-0", "0/1 nodes"),
    ),
    Row(
        "a pod that the kubelet can not start",
        world(
            job(FIRST),
            (pod(0, phase="Pending", waiting_reason="ContainerCreating"), pod(1)),
            held_up={pod(0).uid: 'FailedMount: configmap "helo" not found'},
        ),
        Reason.POD_CONFIG_ERROR,
        says("tiny-0-0", 'FailedMount: configmap "helo" not found'),
    ),
    Row(
        "an image that does not exist",
        world(
            job(FIRST),
            (pod(0), pod(1, phase="Pending", waiting_reason="ImagePullBackOff", waiting_message="not found")),
        ),
        Reason.IMAGE_UNAVAILABLE,
        says("tiny-1-1", "not found"),
    ),
    Row(
        "a missing secret",
        world(
            job(FIRST),
            (
                pod(0),
                pod(
                    1,
                    phase="Pending",
                    waiting_reason="CreateContainerConfigError",
                    waiting_message='secret "s3" not found',
                ),
            ),
        ),
        Reason.POD_CONFIG_ERROR,
        says('secret "s3" not found'),
    ),
    Row(
        "an agent that ends again and again",
        world(job(NUMBERED), (pod(0), pod(1, restarts=3, exit_message="exit code 1")), {0: quiet(0, 1)}),
        Reason.POD_FAILED,
        says("tiny-1-1", "exit code 1"),
    ),
    Row("agents connect", world(job(FIRST), PODS, {1: quiet(1, 0)}), Reason.WAITING_FOR_AGENTS, says("tiny-0-0")),
    Row(
        "the store does not answer at first",
        world(
            job(FIRST),
            PODS,
            {0: quiet(0, 0, run=run_state(0, store=StoreState.UNREACHABLE, message="timeout")), 1: quiet(1, 0)},
        ),
        Reason.WAITING_FOR_STORE,
        says("timeout"),
    ),
    Row(
        "wrong credentials",
        world(
            job(FIRST),
            PODS,
            {0: quiet(0, 0, run=run_state(0, store=StoreState.REFUSED, message="403 for bucket ckpt")), 1: quiet(1, 0)},
        ),
        Reason.STORE_REFUSED,
        says("403 for bucket ckpt"),
    ),
    Row(
        "the first attempt gets a number",
        world(job(FIRST), PODS, {0: quiet(0, 0, run=run_state(0, owner=None)), 1: quiet(1, 0)}),
        Reason.WAITING_FOR_AGENTS,
        every(attempt(1, False, State.PENDING), lambda p: p.urgent and runs()(p)),
    ),
    Row(
        "higher than any number the run has seen",
        world(
            job(FIRST),
            PODS,
            {
                0: quiet(
                    0,
                    0,
                    run=run_state(
                        0,
                        attempts=(Attempt(attempt=1), Attempt(attempt=3, parent=1, restored=checkpoint(8))),
                        owner=Owner(uid="dead", cluster="cluster-1", attempt=5),
                    ),
                ),
                1: quiet(1, 0),
            },
            owner_alive=False,
        ),
        Reason.WAITING_FOR_AGENTS,
        every(
            attempt(6, False, State.PENDING),
            lambda p: p.status.parent == 3,
            lambda p: any(d.take_over == "dead" and d.claim for d in p.directives.values()),
        ),
    ),
    Row(
        "the run is another living job's",
        world(
            job(FIRST),
            PODS,
            {
                0: quiet(
                    0,
                    0,
                    run=run_state(0, owner=Owner(uid="other", cluster="cluster-1", namespace="team", name="first")),
                ),
                1: quiet(1, 0),
            },
            owner_alive=True,
        ),
        Reason.RUN_OWNED,
        every(says("team/first"), lambda p: p.status.attempt == 0),
    ),
    Row(
        "the run's owner is not yet looked for",
        world(
            job(FIRST),
            PODS,
            {0: quiet(0, 0, run=run_state(0, owner=Owner(uid="other", cluster="cluster-1"))), 1: quiet(1, 0)},
        ),
        Reason.CHOOSING_RESTORE,
        lambda p: p.status.attempt == 0,
    ),
    Row(
        "the run's owner is of another cluster",
        world(
            job(FIRST),
            PODS,
            {0: quiet(0, 0, run=run_state(0, owner=Owner(uid="far", cluster="cluster-2"))), 1: quiet(1, 0)},
        ),
        Reason.RUN_OWNED_ELSEWHERE,
        says("ciuic.io/take-over-run: far"),
    ),
    Row(
        "unless the annotation names it",
        world(
            job(FIRST, take_over="far"),
            PODS,
            {0: quiet(0, 0, run=run_state(0, owner=Owner(uid="far", cluster="cluster-2", attempt=2))), 1: quiet(1, 0)},
        ),
        Reason.WAITING_FOR_AGENTS,
        attempt(3, False, State.PENDING),
    ),
    Row(
        "resume Never beside checkpoints",
        world(
            job(FIRST, checkpoint={"path": "s3://ckpt/a", "resume": "Never"}),
            PODS,
            {
                0: quiet(0, 0, run=run_state(0, manifests=(checkpoint(8),), attempts=(Attempt(attempt=1),))),
                1: quiet(1, 0),
            },
        ),
        Reason.RUN_HAS_CHECKPOINTS,
        lambda p: p.status.state is State.FAILED,
    ),
    Row(
        "checkpoints of another model",
        world(
            job(FIRST),
            PODS,
            {
                0: quiet(
                    0, 0, run=run_state(0, manifests=(checkpoint(8),), attempts=(Attempt(attempt=1),), contract="other")
                ),
                1: quiet(1, 0),
            },
        ),
        Reason.CONTRACT_DIFFERS,
        lambda p: p.status.state is State.FAILED and '"other" there can not be read' in p.message,
    ),
    Row(
        "a check failed in a pod",
        world(
            job(NUMBERED),
            PODS,
            {
                0: quiet(0, 1),
                1: quiet(
                    1,
                    1,
                    preflight=Preflight(
                        problems=(PreflightProblem(code="Interface", message="ib0 does not exist; there are eth0, lo"),)
                    ),
                ),
            },
        ),
        Reason.PREFLIGHT_FAILED,
        every(says("slot 1", "eth0"), runs()),
    ),
    Row(
        "an agent still checks",
        world(job(NUMBERED), PODS, {0: quiet(0, 1), 1: quiet(1, 1, preflight=None)}),
        Reason.QUIESCING,
        runs(),
    ),
    Row(
        "not released before the run is ours",
        world(job(NUMBERED), PODS, {0: quiet(0, 1, run=run_state(1, claimed_attempt=0)), 1: quiet(1, 1)}),
        Reason.CHOOSING_RESTORE,
        runs(),
    ),
    Row(
        "not released on an old look at the run",
        world(job(NUMBERED), PODS, {0: quiet(0, 1, run=run_state(1, scanned_attempt=0)), 1: quiet(1, 1)}),
        Reason.CHOOSING_RESTORE,
        runs(),
    ),
    Row(
        "a new run starts at step 0",
        world(job(NUMBERED), PODS, {0: quiet(0, 1), 1: quiet(1, 1)}),
        Reason.FIRST_START,
        every(from_zero, runs(0, 1), attempt(1, True, State.STARTING), lambda p: p.urgent),
    ),
    Row(
        "an applied-again job goes on from its run",
        world(
            job(
                status(
                    State.PENDING,
                    4,
                    False,
                    parent=3,
                    lineage=(
                        LineageLink(attempt=1),
                        LineageLink(attempt=3, parent=1, restored=CheckpointRef(step=8, attempt=1)),
                    ),
                )
            ),
            PODS,
            {0: quiet(0, 4, run=run_state(4, manifests=(checkpoint(16, 3), checkpoint(8, 1)))), 1: quiet(1, 4)},
        ),
        Reason.RESTORING,
        restores(16, 3, "s3", "s3"),
    ),
    Row(
        "an own script has no store",
        world(job(NUMBERED, command=["python", "x.py"]), PODS, {0: quiet(0, 1, run=None), 1: quiet(1, 1)}),
        Reason.FIRST_START,
        every(from_zero, runs(0, 1)),
    ),
    Row(
        "an own script is numbered at once",
        world(job(FIRST, command=["python", "x.py"]), PODS, {}),
        Reason.WAITING_FOR_AGENTS,
        attempt(1, False, State.PENDING),
    ),
    # running
    Row(
        "the first steps are made",
        world(job(status(State.STARTING, reason="FirstStart")), PODS, {0: trains(0), 1: trains(1)}),
        Reason.TRAINING,
        every(attempt(1, True, State.RUNNING), no_action),
    ),
    Row(
        "ranks are still loading",
        world(job(status(State.STARTING, reason="FirstStart")), PODS, {0: trains(0, step=0), 1: trains(1, step=0)}),
        Reason.FIRST_START,
        no_action,
    ),
    Row("a healthy job is left alone", HEALTHY, Reason.TRAINING, every(no_action, runs(0, 1))),
    Row(
        "silence is no fault",
        world(job(status()), PODS, {}),
        Reason.TRAINING,
        every(no_action, attempt(1, True, State.RUNNING)),
    ),
    Row(
        "a silent agent is no fault",
        replace(
            HEALTHY,
            agents={uid: replace(a, connected=False, heard_seconds_ago=300.0) for uid, a in HEALTHY.agents.items()},
        ),
        Reason.TRAINING,
        no_action,
    ),
    Row(
        "operator back, only slot 1 heard",
        world(job(status()), PODS, {1: trains(1)}),
        Reason.TRAINING,
        every(no_action, runs(1)),
    ),
    Row(
        "a quiet slot is not told to run without rendezvous",
        world(job(status()), PODS, {1: quiet(1, 1)}),
        Reason.TRAINING,
        runs(),
    ),
    # failure
    Row(
        "a killed rank",
        world(job(status()), PODS, ONE_DEAD),
        Reason.RANK_KILLED,
        every(
            attempt(2, False, State.RESTARTING),
            runs(),
            says("rank 1", "SIGKILL", "step 17"),
            lambda p: p.urgent and p.status.parent == 1 and p.status.restarts.software == 1 and no_action(p),
        ),
    ),
    Row(
        "the first to die is the cause",
        world(job(status()), PODS, {0: BROKEN, 1: KILLED}),
        Reason.RANK_KILLED,
        says("rank 1"),
    ),
    Row(
        "without watchdog it fails",
        world(job(status(), watchdog=False), PODS, ONE_DEAD),
        Reason.WATCHDOG_OFF,
        every(attempt(1, True, State.FAILED), says("SIGKILL", 'ciuic.io/watchdog: "true"')),
    ),
    Row(
        "a deleted pod",
        world(job(status()), (pod(0), pod(1, deleting=True)), {0: trains(0)}),
        Reason.POD_DELETED,
        every(
            attempt(2, False, State.RESTARTING), lambda p: p.status.restarts.disruption == 1 and p.status.budget is None
        ),
    ),
    Row(
        "a pod that vanished",
        world(job(status()), (pod(0),), {0: trains(0)}),
        Reason.POD_DELETED,
        attempt(2, False, State.RESTARTING),
    ),
    Row(
        "an evicted pod",
        world(job(status()), (pod(0), pod(1, phase="Failed", status_reason="Evicted")), {0: trains(0)}),
        Reason.POD_EVICTED,
        attempt(2, False, State.RESTARTING),
    ),
    Row(
        "a pod that ended",
        world(job(status()), (pod(0), pod(1, phase="Failed", exit_message="exit code 3")), {0: trains(0)}),
        Reason.POD_FAILED,
        says("exit code 3"),
    ),
    Row(
        "a container that was restarted",
        world(
            job(status()),
            PODS,
            {
                0: trains(0),
                1: report(1, 1, AgentState.EXITED, failure=AgentFailure(reason="AgentRestarted", message="OOM")),
            },
        ),
        Reason.AGENT_RESTARTED,
        says("OOM"),
    ),
    Row(
        "an agent that lost its memory",
        world(job(status()), PODS, {0: trains(0), 1: quiet(1, 0)}),
        Reason.AGENT_RESTARTED,
        attempt(2, False, State.RESTARTING),
    ),
    Row(
        "a rank that stopped by itself",
        world(job(status()), PODS, {0: ended(0, 75), 1: ended(1, 75)}),
        Reason.RANK_STOPPED,
        attempt(2, False, State.RESTARTING),
    ),
    Row(
        "ranks that end well too early are not done",
        world(job(status()), PODS, {0: ended(0, 0), 1: ended(1, 0)}),
        Reason.RANK_STOPPED,
        every(attempt(2, False, State.RESTARTING), says("before its last step")),
    ),
    Row(
        "a checkpoint that can not be restored",
        world(
            job(status()),
            PODS,
            {
                0: trains(0),
                1: report(
                    1, 1, AgentState.QUIESCED, restore_failed=RestoreFailure(checkpoint=checkpoint(16), why="crc")
                ),
            },
        ),
        Reason.RESTORE_FAILED,
        lambda p: [(q.step, q.attempt) for q in p.status.quarantined] == [(16, 1)],
    ),
    Row(
        "the third equal failure without progress",
        world(job(status(ledger=ledger(17, 17), highest_step=17)), PODS, ONE_DEAD),
        Reason.CRASH_LOOP,
        every(attempt(1, True, State.FAILED), no_action),
    ),
    Row(
        "equal failures with progress go on",
        world(job(status(ledger=ledger(3, 9), highest_step=9)), PODS, ONE_DEAD),
        Reason.RANK_KILLED,
        attempt(2, False, State.RESTARTING),
    ),
    Row(
        "the budget is spent",
        world(job(status(budget=Budget(since="2026-11-30T11:30:00Z", used=10))), PODS, ONE_DEAD),
        Reason.RESTART_BUDGET_SPENT,
        lambda p: p.status.state is State.FAILED,
    ),
    Row(
        "the budget's window is over",
        world(job(status(budget=Budget(since="2026-11-30T10:30:00Z", used=10))), PODS, ONE_DEAD),
        Reason.RANK_KILLED,
        lambda p: p.status.budget is not None and p.status.budget.used == 1,
    ),
    # recovery
    Row(
        "old ranks still end",
        world(job(restarting()), PODS, {0: quiet(0, 2), 1: report(1, 1, AgentState.KILLING)}),
        Reason.QUIESCING,
        runs(),
    ),
    Row(
        "only the lost slot gets a pod",
        world(job(restarting()), (pod(0), pod(1, deleting=True)), {0: quiet(0, 2)}),
        Reason.CREATING_PODS,
        every(creates(2), lambda p: p.status.next_incarnation == 3),
    ),
    Row(
        "ranks that can not be ended",
        world(
            job(restarting()),
            PODS,
            {
                0: quiet(0, 2),
                1: report(1, 2, AgentState.KILLING, failure=AgentFailure(reason=RANKS_REMAIN, message="")),
            },
        ),
        Reason.QUIESCING,
        deletes("tiny-1-1"),
    ),
    Row(
        "restored from memory",
        world(
            job(restarting()),
            PODS,
            {
                0: quiet(0, 2, held=(checkpoint(16), checkpoint(12))),
                1: quiet(1, 2, held=(checkpoint(16), checkpoint(12))),
            },
        ),
        Reason.RESTORING,
        every(restores(16, 1, "memory", "memory"), runs(0, 1)),
    ),
    Row(
        "one shard in memory, one in S3",
        world(
            job(restarting()),
            PODS,
            {
                0: quiet(0, 2, held=(checkpoint(16), checkpoint(18)), run=run_state(2, manifests=(checkpoint(16),))),
                1: quiet(1, 2),
            },
        ),
        Reason.RESTORING,
        restores(16, 1, "memory", "s3"),
    ),
    Row(
        "two attempts' copies of one step are two checkpoints",
        world(
            job(
                restarting(
                    4,
                    3,
                    lineage=(
                        LineageLink(attempt=2),
                        LineageLink(attempt=3, parent=2, restored=CheckpointRef(step=15, attempt=2)),
                    ),
                )
            ),
            PODS,
            {
                0: quiet(0, 4, held=(checkpoint(16, 2), checkpoint(15, 2))),
                1: quiet(1, 4, held=(checkpoint(16, 3), checkpoint(15, 2))),
            },
        ),
        Reason.RESTORING,
        restores(15, 2, "memory", "memory"),
    ),
    Row(
        "a dead branch is not used",
        world(
            job(
                restarting(
                    4,
                    3,
                    lineage=(
                        LineageLink(attempt=2),
                        LineageLink(attempt=3, parent=2, restored=CheckpointRef(step=15, attempt=2)),
                    ),
                )
            ),
            PODS,
            {0: quiet(0, 4, run=run_state(4, manifests=(checkpoint(20, 2), checkpoint(10, 2)))), 1: quiet(1, 4)},
        ),
        Reason.RESTORING,
        restores(10, 2, "s3", "s3"),
    ),
    Row(
        "a quarantined checkpoint is not used",
        world(
            job(
                JobStatus.model_validate(
                    restarting().model_dump() | {"quarantined": [{"step": 16, "attempt": 1, "why": "crc"}]}
                )
            ),
            PODS,
            {0: quiet(0, 2, run=run_state(2, manifests=(checkpoint(16), checkpoint(8)))), 1: quiet(1, 2)},
        ),
        Reason.RESTORING,
        restores(8, 1, "s3", "s3"),
    ),
    Row(
        "a refused manifest is said",
        world(
            job(restarting()),
            PODS,
            {
                0: quiet(0, 2, run=run_state(2, manifests=(checkpoint(8),), refused=("16.a1: rank-00001 is missing",))),
                1: quiet(1, 2),
            },
        ),
        Reason.RESTORING,
        every(restores(8, 1, "s3", "s3"), says("rank-00001 is missing")),
    ),
    Row(
        "nothing was committed yet",
        world(job(restarting()), PODS, in_two()),
        Reason.NO_CHECKPOINT_YET,
        every(from_zero, runs(0, 1), lambda p: any(isinstance(a, EmitEvent) and a.warning for a in p.actions)),
    ),
    Row(
        "never step 0 after a commit",
        world(job(restarting(last_committed=committed(8))), PODS, in_two()),
        Reason.CHECKPOINTS_LOST,
        every(lambda p: p.status.state is State.FAILED, runs()),
    ),
    Row(
        "never step 0 beside refused manifests",
        world(job(restarting()), PODS, in_two(run=run_state(2, refused=("8.a1: altered",)))),
        Reason.CHECKPOINTS_LOST,
        says("8.a1: altered"),
    ),
    Row(
        "S3 down, memory is enough",
        world(
            job(restarting(last_committed=committed(8))),
            PODS,
            {
                0: quiet(0, 2, held=(checkpoint(12),), run=run_state(2, store=StoreState.UNREACHABLE, owner=None)),
                1: quiet(1, 2, held=(checkpoint(12),)),
            },
        ),
        Reason.RESTORING,
        restores(12, 1, "memory", "memory"),
    ),
    Row(
        "S3 down, and it holds a newer one",
        world(
            job(restarting(last_committed=committed(16))),
            PODS,
            {
                0: quiet(0, 2, held=(checkpoint(12),), run=run_state(2, store=StoreState.UNREACHABLE, owner=None)),
                1: quiet(1, 2, held=(checkpoint(12),)),
            },
        ),
        Reason.WAITING_FOR_STORE,
        runs(),
    ),
    Row(
        "S3 down, and it is needed",
        world(
            job(restarting()),
            PODS,
            in_two(run=run_state(2, store=StoreState.UNREACHABLE, owner=None, message="refused")),
        ),
        Reason.WAITING_FOR_STORE,
        runs(),
    ),
    Row(
        "a pod lost again during recovery",
        world(job(restarting()), (pod(0),), {0: quiet(0, 2)}),
        Reason.CREATING_PODS,
        every(creates(2), lambda p: p.status.attempt == 2),
    ),
    Row(
        "two pods of one slot",
        world(job(status()), (pod(0), pod(1), pod(1, 5)), {0: trains(0), 1: trains(1)}),
        Reason.TRAINING,
        every(deletes("tiny-1-1"), attempt(1, True, State.RUNNING)),
    ),
    Row(
        "the run was taken by another job",
        world(
            job(restarting()),
            PODS,
            in_two(run=run_state(2, owner=Owner(uid="thief", cluster="cluster-1"))),
            owner_alive=True,
        ),
        Reason.RUN_OWNED,
        runs(),
    ),
    # the end
    Row(
        "all ended well",
        world(
            job(status()),
            PODS,
            {0: ended(0, 0, step=100, uploads_done=True), 1: ended(1, 0, step=100, uploads_done=True)},
        ),
        Reason.COMPLETED,
        every(lambda p: p.status.state is State.COMPLETE and all(d.finish for d in p.directives.values())),
    ),
    Row(
        "not before the last upload",
        world(
            job(status()),
            PODS,
            {0: ended(0, 0, step=100, uploads_done=False), 1: ended(1, 0, step=100, uploads_done=True)},
        ),
        Reason.TRAINING,
        says("uploaded"),
    ),
    Row(
        "a pod lost after the last step was committed",
        world(job(status(last_committed=committed(100))), (pod(0),), {0: ended(0, 0, step=100)}),
        Reason.COMPLETED,
        lambda p: p.status.state is State.COMPLETE,
    ),
    Row(
        "a complete job is left alone",
        world(job(status(State.COMPLETE, reason="Completed", finished_at="2026-11-30T11:59:50Z")), PODS, {}),
        Reason.COMPLETED,
        no_action,
    ),
    Row(
        "a complete job's lingering pods go",
        world(job(status(State.COMPLETE, reason="Completed", finished_at="2026-11-30T11:59:00Z")), PODS, {}),
        Reason.COMPLETED,
        deletes("tiny-0-0", "tiny-1-1"),
    ),
    Row(
        "a failed job is not restarted",
        world(job(status(State.FAILED, reason="CrashLoop", finished_at="2026-11-30T11:59:50Z")), (), {}),
        Reason.CRASH_LOOP,
        no_action,
    ),
    Row(
        "its time to live is over",
        world(
            job(
                status(State.COMPLETE, reason="Completed", finished_at="2026-11-30T11:59:00Z"),
                runPolicy={"ttlSecondsAfterFinished": 30},
            ),
            (),
            {},
        ),
        Reason.COMPLETED,
        lambda p: DeleteJob() in p.actions,
    ),
    Row(
        "a job being deleted",
        world(job(status(), deleting=True), (pod(0),), {}),
        Reason.POD_DELETED,
        every(no_action, attempt(1, True, State.RUNNING), lambda p: not p.directives),
    ),
    Row(
        "too long in all",
        world(job(status(), runPolicy={"activeDeadlineSeconds": 60}), PODS, {0: trains(0), 1: trains(1)}),
        Reason.ACTIVE_DEADLINE,
        lambda p: p.status.state is State.FAILED,
    ),
    Row(
        "too long to start",
        world(
            job(
                status(State.PENDING, 0, False, reason="Unschedulable", message="fits nowhere"),
                runPolicy={"startupDeadlineSeconds": 60},
            ),
            PODS,
            {},
        ),
        Reason.STARTUP_DEADLINE,
        says("fits nowhere"),
    ),
    # the operator was installed in another place
    Row(
        "pods of another installation train on",
        world(job(status()), ELSEWHERE, {}),
        Reason.TRAINING,
        no_action,
    ),
    Row(
        "and are replaced where the attempt is a new one anyway",
        world(job(restarting()), (pod(0, hub="wss://there#1"), pod(1)), {1: quiet(1, 2)}),
        Reason.CREATING_PODS,
        deletes("tiny-0-0"),
    ),
    # suspend
    Row(
        "suspended before it ran",
        world(job(JobStatus(), runPolicy={"suspend": True})),
        Reason.SUSPENDED,
        every(no_action, lambda p: p.status.state is State.SUSPENDED),
    ),
    Row(
        "suspend stops gracefully",
        world(job(status(), runPolicy={"suspend": True}), PODS, {0: trains(0), 1: trains(1)}),
        Reason.SUSPENDING,
        every(no_action, lambda p: all(d.stop and not d.run for d in p.directives.values())),
    ),
    Row(
        "pods go when uploads are done",
        world(
            job(status(State.SUSPENDING, reason="Suspending"), runPolicy={"suspend": True}),
            PODS,
            {0: ended(0, 75, uploads_done=True), 1: ended(1, 75, uploads_done=True)},
        ),
        Reason.SUSPENDING,
        deletes("tiny-0-0", "tiny-1-1"),
    ),
    Row(
        "and not before",
        world(
            job(
                status(State.SUSPENDING, reason="Suspending", state_since="2026-11-30T11:59:30Z"),
                runPolicy={"suspend": True},
            ),
            PODS,
            {0: ended(0, 75, uploads_done=True), 1: trains(1)},
        ),
        Reason.SUSPENDING,
        no_action,
    ),
    Row(
        "nor is a stop waited for that can not be told",
        world(job(status(State.SUSPENDING, reason="Suspending"), runPolicy={"suspend": True}), ELSEWHERE, {}),
        Reason.SUSPENDING,
        deletes("tiny-0-0", "tiny-1-1"),
    ),
    Row(
        "resumed as a new attempt",
        world(job(status(State.SUSPENDED, reason="Suspended")), (), {}),
        Reason.RESUMED,
        every(attempt(2, False, State.PENDING), lambda p: p.status.parent == 1),
    ),
    # impossible
    Row(
        "a contradiction of label and block",
        world(job(problems=((Reason.WATCHDOG_CONTRADICTION, "both"),))),
        Reason.WATCHDOG_CONTRADICTION,
        no_action,
    ),
    Row(
        "a memory tier that does not fit",
        world(job(checkpoint={"path": "s3://ckpt/a", "memory": {"sizeLimit": "1Mi"}})),
        Reason.MEMORY_TIER_TOO_SMALL,
        every(no_action, says("1 MiB")),
    ),
    Row(
        "labels edited while it trains",
        world(job(status(), problems=((Reason.WATCHDOG_CONTRADICTION, "both"),)), PODS, {0: trains(0), 1: trains(1)}),
        Reason.TRAINING,
        no_action,
    ),
]


def wrong(row: Row) -> str | None:
    """What is wrong with the plan for this row, if anything."""
    try:
        plan = planner.plan(row.world)
    except (StopIteration, KeyError) as error:
        return f"no plan: {error!r}"
    if plan.reason is not row.reason:
        return f"{plan.reason}: {plan.message}"
    return None if row.check(plan) else f"check failed: {plan.message} {plan.actions} {plan.status.state}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: Row) -> None:
    assert wrong(row) is None


@pytest.mark.parametrize("rule", planner.RULES, ids=lambda rule: rule.__name__)
def test_no_rule_can_be_removed(rule: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "RULES", tuple(other for other in planner.RULES if other is not rule))
    assert any(wrong(row) for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_plan_never_forgets(row: Row) -> None:
    """Numbers only grow, and what was committed is never forgotten."""
    before, after = row.world.job.status, planner.plan(row.world).status
    assert after.attempt >= before.attempt and after.next_incarnation >= before.next_incarnation
    assert before.last_committed is None or after.last_committed is not None


def test_same_world_same_plan() -> None:
    assert planner.plan(HEALTHY) == planner.plan(HEALTHY)


def test_recovery_time_is_noted() -> None:
    failed_at = (NOW - timedelta(seconds=7)).strftime("%Y-%m-%dT%H:%M:%SZ")
    failure = {"reason": "RankKilled", "message": "rank 1", "at": failed_at}
    again = JobStatus.model_validate(
        status(State.RESTARTING, 2, reason="Restoring").model_dump()
        | {"last_failure": failure, "restored": {"step": 16, "attempt": 1}}
    )
    plan = planner.plan(world(job(again), PODS, {0: trains(0, 2), 1: trains(1, 2)}))
    assert plan.status.last_failure is not None and plan.status.last_failure.recovered_seconds == 7


def test_ready_ranks_of_one_step_are_the_highest_step() -> None:
    ranks = (RankState(rank=1, phase="step", step=16),)
    plan = planner.plan(world(job(status()), PODS, {0: trains(0, step=17), 1: trains(1, ranks=ranks)}))
    assert plan.status.highest_step == 16


def test_an_older_report_of_a_peer_hides_no_step() -> None:
    """Ranks are one step apart at most: a rank that died after step 20 had peers that completed 19."""
    plan = planner.plan(world(job(status()), PODS, {0: trains(0, step=17), 1: ended(1, -9, step=20)}))
    assert plan.status.highest_step == 19


def test_after_a_restart_of_the_operator_nobody_is_called_not_ready() -> None:
    ready = next(c for c in planner.plan(HEALTHY).status.conditions if c.type == "PodsReady")
    before = status(conditions=(ready,))
    deaf = world(job(before), PODS, {}, hub_started_seconds_ago=2.0)
    assert ready in planner.plan(deaf).status.conditions
    later = replace(deaf, hub_started_seconds_ago=60.0)
    assert ready not in planner.plan(later).status.conditions
