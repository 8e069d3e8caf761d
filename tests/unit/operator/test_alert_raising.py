"""What is told when: statuses that the planner makes of worlds, one after the other."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from builders import (
    NOW,
    PODS,
    AgentFailure,
    CheckpointRef,
    JobStatus,
    RankState,
    State,
    committed,
    ended,
    job,
    pod,
    quiet,
    report,
    restarting,
    status,
    trains,
    world,
)
from ciuic_api.jobstatus import Condition, LedgerEntry, RestartCounts
from ciuic_api.nextsteps import STEPS
from ciuic_api.protocol import AgentState, Report, UploadState
from ciuic_api.reasons import Reason
from ciuic_operator import planner
from ciuic_operator.alerts.model import Alert, Severity
from ciuic_operator.alerts.raising import NEEDS_SOMEBODY, raised, waits
from ciuic_operator.model import Pod, World

KILLED = ended(
    1, -9, failure=AgentFailure(reason="RankExited", message="", rank=1, fingerprint="k", at_seconds_ago=0.5)
)
LEDGER = (LedgerEntry(at="2026-11-30T11:59:52Z", reason="RankKilled", fingerprint="k", counted=True, step=17),)


def told(before: World, after: JobStatus | None = None) -> list[Alert]:
    """Of what the planner makes of a world, or of a given status after it."""
    persisted = planner.plan(before).status if after is None else after
    return list(raised(replace(before.job, status=persisted), before.job.status, NOW))


def kinds(alerts: list[Alert]) -> list[tuple[str, bool]]:
    return [(str(alert.kind), alert.over) for alert in alerts]


def of(
    persisted: JobStatus, pods: tuple[Pod, ...] = PODS, reports: dict[int, Report] | None = None, **fields: Any
) -> World:
    return world(job(persisted, **fields), pods, reports)


def test_a_job_that_is_well_tells_nothing() -> None:
    assert told(of(status(), reports={0: trains(0), 1: trains(1)})) == []
    assert told(world(job())) == [], "creating pods"


def test_a_restart_names_failure_and_place() -> None:
    (alert,) = told(of(status(highest_step=17), reports={0: trains(0), 1: KILLED}))
    assert kinds([alert]) == [("Restarting", False)] and alert.severity is Severity.WARNING
    assert (alert.reason, alert.slot, alert.rank, alert.node) == ("RankKilled", 1, 1, "node1")
    assert (alert.attempt, alert.restarts, alert.step, alert.lost_steps) == (2, 1, 17, None)
    assert "SIGKILL" in alert.message


def recovering(**fields: Any) -> JobStatus:
    base: dict[str, Any] = {
        "state": State.RESTARTING,
        "attempt": 2,
        "reason": "Restoring",
        "restored": CheckpointRef(step=10, attempt=1),
        "ledger": LEDGER,
        "highest_step": 17,
        "restarts": RestartCounts(total=1, software=1),
    }
    failing = planner.plan(of(status(highest_step=17), reports={0: trains(0), 1: KILLED})).status.last_failure
    assert failing is not None
    base["last_failure"] = failing.model_copy(update={"at": "2026-11-30T11:59:52Z"})
    return status(**(base | fields))


def test_a_recovery_says_how_long_it_took_and_what_it_cost() -> None:
    (alert,) = told(of(recovering(), reports={0: trains(0, 2, step=11), 1: trains(1, 2, step=11)}))
    assert kinds([alert]) == [("Recovered", False)] and alert.severity is Severity.INFO
    assert (alert.seconds, alert.step, alert.kept_step, alert.lost_steps) == (8, 17, 10, 7)
    assert (alert.reason, alert.slot) == ("RankKilled", 1)


def test_a_recovery_is_told_once() -> None:
    reports = {0: trains(0, 2, step=11), 1: trains(1, 2, step=11)}
    after = planner.plan(of(recovering(), reports=reports)).status
    assert told(of(after, reports={0: trains(0, 2, step=12), 1: trains(1, 2, step=12)})) == []


def test_starting_at_zero_again_is_told_with_its_cost() -> None:
    before = restarting(2, 1, ledger=LEDGER, highest_step=17)
    (alert,) = told(of(before, reports={0: quiet(0, 2), 1: quiet(1, 2)}))
    assert kinds([alert]) == [("NoCheckpointYet", False)] and alert.lost_steps == 17


def test_the_steps_of_a_script_are_its_own_affair() -> None:
    script = job(status(), command=["python", "x.py"])
    killed = ended(1, -9)
    (alert,) = told(world(script, PODS, {0: trains(0), 1: killed}))
    assert kinds([alert]) == [("Restarting", False)] and alert.step is None and alert.lost_steps is None
    again = world(job(restarting(2, 1), command=["python", "x.py"]), PODS, {0: quiet(0, 2), 1: quiet(1, 2)})
    assert planner.plan(again).reason is Reason.NO_CHECKPOINT_YET and told(again) == []


def test_without_watchdog_a_failure_ends_the_job() -> None:
    before = of(
        status(highest_step=17, last_committed=committed(10)), reports={0: trains(0), 1: KILLED}, watchdog=False
    )
    (alert,) = told(before)
    assert kinds([alert]) == [("Failed", False)] and alert.severity is Severity.CRITICAL
    assert (alert.reason, alert.rank, alert.seconds, alert.lost_steps) == ("WatchdogOff", 1, 300, 7)


def test_a_job_that_fails_for_another_reason_does_not_name_an_old_place() -> None:
    policy = {"activeDeadlineSeconds": 60}
    before = of(
        recovering(state=State.RUNNING, reason="Training"), reports={0: trains(0, 2), 1: trains(1, 2)}, runPolicy=policy
    )
    (alert,) = told(before)
    assert (alert.reason, alert.slot, alert.node) == ("ActiveDeadline", None, None)


def test_the_end() -> None:
    done = {slot: ended(slot, 0, step=100, uploads_done=True) for slot in (0, 1)}
    (alert,) = told(of(status(highest_step=100), reports=done))
    assert kinds([alert]) == [("Complete", False)] and (alert.step, alert.seconds) == (100, 300)
    after = planner.plan(of(status(highest_step=100), reports=done)).status
    assert told(of(after, reports=done)) == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"phase": "Pending", "unschedulable": "0/3 nodes"}, "Unschedulable"),
        ({"phase": "Pending", "waiting_reason": "ImagePullBackOff"}, "ImageUnavailable"),
        ({"phase": "Pending", "waiting_reason": "CreateContainerConfigError"}, "PodConfigError"),
        ({"phase": "Running", "restarts": 3}, "PodFailed"),
    ],
)
def test_a_job_that_waits_for_somebody(fields: dict[str, Any], reason: str) -> None:
    before = JobStatus(next_incarnation=2, state=State.PENDING, reason="WaitingForPods")
    waiting = of(before, (pod(0), pod(1, **fields)))
    (alert,) = told(waiting)
    assert kinds([alert]) == [("Waiting", False)] and alert.reason == reason
    after = planner.plan(waiting).status
    assert waits(after) and told(of(after, (pod(0), pod(1, **fields)))) == [], "the same wait is told once"
    assert not waits(before)


def test_a_pod_that_failed_and_is_made_anew_is_a_restart_not_a_wait() -> None:
    alerts = told(of(status(), (pod(0), pod(1, phase="Failed")), {0: trains(0)}))
    assert kinds(alerts) == [("Restarting", False)] and alerts[0].reason == "PodFailed"


def test_uploads_that_fail_and_succeed_again() -> None:
    stale = UploadState(failing_seconds=90, message="503 SlowDown")
    before = of(
        status(highest_step=17, last_committed=committed(10)), reports={0: trains(0, upload=stale), 1: trains(1)}
    )
    (alert,) = told(before)
    assert kinds([alert]) == [("CheckpointStale", False)] and "503 SlowDown" in alert.message and alert.lost_steps == 7
    after = planner.plan(before).status
    alerts = told(of(after, reports={0: trains(0), 1: trains(1)}))
    assert kinds(alerts) == [("CheckpointStale", True)] and alerts[0].severity is Severity.INFO


def hung(seconds: float = 700) -> dict[int, Report]:
    stands = [RankState(rank=slot, phase="step", step=17, unmoved_seconds=seconds) for slot in (0, 1)]
    return {rank.rank: report(rank.rank, 1, AgentState.RUNNING, ranks=(rank,)) for rank in stands}


def test_a_standstill_and_its_end() -> None:
    before = of(status(highest_step=17), reports=hung())
    (alert,) = told(before)
    assert kinds([alert]) == [("Stalled", False)] and "no rank has moved" in alert.message
    after = planner.plan(before).status
    assert kinds(told(of(after, reports={0: trains(0), 1: trains(1)}))) == [("Stalled", True)]


def test_a_standstill_that_is_restarted_is_a_restart() -> None:
    stalled = planner.plan(of(status(highest_step=17), reports=hung())).status
    later = replace(of(stalled, reports=hung(9999)), now=NOW + timedelta(seconds=60))
    alerts = told(later)
    assert kinds(alerts) == [("Restarting", False)] and alerts[0].reason == "Hang"


def test_what_was_persisted_unheard_is_told_at_once() -> None:
    """The answer to a write got lost: two changes are seen as one."""
    healthy = of(status(highest_step=17), reports={0: trains(0), 1: KILLED})
    failing = planner.plan(healthy).status
    stale = failing.model_copy(
        update={"conditions": (Condition(type="CheckpointStale", status="True", reason="x", last_transition_time="x"),)}
    )
    assert kinds(told(healthy, stale)) == [("Restarting", False), ("CheckpointStale", False)]


def test_reasons_that_need_somebody_have_a_step() -> None:
    assert set(STEPS) >= NEEDS_SOMEBODY and Reason.WAITING_FOR_PODS not in NEEDS_SOMEBODY
