"""The tiny job trains, loses a rank, a pod, its operator, and ends with the same losses, bit for bit."""

import math
from typing import Any

import pytest
from conftest import S3, Apply, Operator
from jobs import Run, TrainingJob, tiny

pytestmark = pytest.mark.e2e
VOCABULARY = 1024


def test_it_learns(uninterrupted: tuple[Run, dict[str, Any]]) -> None:
    run, status = uninterrupted
    losses = run.by_step()
    assert sorted(losses) == list(range(1, 61)), "each step once"
    assert run.repeats == [], "no step of an attempt twice"
    assert losses[1] == pytest.approx(math.log(VOCABULARY), abs=0.5), "starts as one who knows nothing"
    assert losses[1] - losses[60] > 1.0
    assert math.log(VOCABULARY) - run.evaluations[60] > 1.0, "on the held-out part too"
    assert status["attempt"] == 1 and status["restarts"]["total"] == 0
    assert status["lastCommitted"]["step"] == 60


def assert_same(interrupted: TrainingJob, clean: Run) -> Run:
    """Every step's loss, in the attempt that counts, equals that of the run without a fault."""
    run = interrupted.run()
    assert run.by_step() == clean.by_step()
    assert run.repeats == []
    return run


def test_a_killed_rank_goes_on_from_memory(
    uninterrupted: tuple[Run, dict[str, Any]], apply: Apply, run_name: str
) -> None:
    job = apply(tiny("tiny", run_name))
    job.hold(25)
    before = job.uids()
    job.signal_ranks(1, "SIGKILL")
    job.wait("attempt 2", lambda status: status.get("attempt") == 2)
    status = job.wait_state("Complete")
    assert job.uids() == before, "healthy pods stay"
    assert status["attempt"] == 2 and status["restarts"] == {"total": 1, "software": 1, "disruption": 0}
    assert status["lastFailure"]["reason"] == "RankKilled" and "SIGKILL" in status["lastFailure"]["message"]
    assert status["lastFailure"]["rank"] == 1 and "recoveredSeconds" in status["lastFailure"]
    assert any(reason == "Restoring" and "from memory" in note for reason, note in job.events()), job.events()
    assert_same(job, uninterrupted[0])


def test_a_deleted_pod_is_replaced(uninterrupted: tuple[Run, dict[str, Any]], apply: Apply, run_name: str) -> None:
    job = apply(tiny("tiny", run_name))
    job.hold(12)
    job.wait_committed(10)
    before = job.uids()
    job.delete_pod(1)
    job.wait("attempt 2", lambda status: status.get("attempt") == 2)
    status = job.wait_state("Complete")
    after = job.uids()
    assert after[0] == before[0] and after[1] != before[1]
    assert status["attempt"] == 2 and status["restarts"] == {"total": 1, "software": 0, "disruption": 1}
    assert_same(job, uninterrupted[0])


def test_all_pods_deleted_goes_on_from_s3(
    uninterrupted: tuple[Run, dict[str, Any]], apply: Apply, run_name: str, s3: S3
) -> None:
    job = apply(tiny("tiny", run_name))
    job.hold(22)
    job.wait_committed(20)
    for slot in (0, 1):
        job.delete_pod(slot, grace_seconds=0)
    status = job.wait_state("Complete")
    assert status["attempt"] >= 2
    assert any(reason == "Restoring" and "from S3" in note for reason, note in job.events()), job.events()
    assert_same(job, uninterrupted[0])
    kept = [step for step, _ in s3.manifests(run_name)]
    assert kept[-1] == 60 and len(kept) <= 4, "checkpoint.keep.last, and what an attempt was restored from"


def test_a_rank_that_stands_still_is_named_and_restarted(
    uninterrupted: tuple[Run, dict[str, Any]], apply: Apply, run_name: str, s3: S3
) -> None:
    job = apply(tiny("tiny", run_name, watchdog={"deadlines": {"step": 5}}))
    job.hold(25, slot=1)
    before = job.uids()
    job.wait("attempt 2", lambda status: status.get("attempt") == 2, 60)
    status = job.wait_state("Complete")
    failure = status["lastFailure"]
    assert (failure["reason"], failure["rank"], failure["slot"]) == ("Hang", 1, 1), failure
    assert "stopped by a signal" in failure["message"], failure
    assert any("/evidence/a1/slot-00001" in key for key in s3.keys(run_name))
    assert "/evidence/a1/" in failure["evidence"]
    assert job.uids() == before
    assert_same(job, uninterrupted[0])


def test_the_operator_deleted_twice_changes_nothing(
    uninterrupted: tuple[Run, dict[str, Any]], apply: Apply, run_name: str, operator: Operator
) -> None:
    job = apply(tiny("tiny", run_name))
    job.hold(5)
    before = job.uids()
    for _ in range(2):
        operator.kill()
        operator.wait()
    job.go_on()
    status = job.wait_state("Complete")
    assert job.uids() == before and status["attempt"] == 1 and status["restarts"]["total"] == 0
    assert_same(job, uninterrupted[0])


def test_suspend_and_resume(uninterrupted: tuple[Run, dict[str, Any]], apply: Apply, run_name: str, s3: S3) -> None:
    job = apply(tiny("tiny", run_name))
    job.hold(12)
    job.patch({"runPolicy": {"suspend": True}})
    job.wait_reason("Suspending")
    job.go_on()
    status = job.wait_state("Suspended", 60)
    stopped_at = status["lastCommitted"]["step"]
    assert s3.manifests(run_name)[-1] == (stopped_at, 1), "a last checkpoint at the very step"
    assert 12 <= stopped_at < 60 and job.pods() == {}
    job.patch({"training": {"steps": 61}, "runPolicy": {"suspend": False}})
    status = job.wait_state("Complete")
    assert status["attempt"] == 2 and status["restarts"]["total"] == 0
    losses = {step: loss for (attempt, step), loss in job.run().losses.items() if attempt == 2}
    assert min(losses) == stopped_at + 1, "goes on where it stopped"


def test_without_watchdog_it_fails_and_says_why(apply: Apply, run_name: str) -> None:
    body = tiny("tiny", run_name)
    body["metadata"]["labels"] = {}
    job = apply(body)
    job.reach(3, signal="SIGKILL")
    status = job.wait_state("Failed", 30)
    assert status["reason"] == "WatchdogOff" and "ciuic.io/watchdog" in status["message"]
    assert status["attempt"] == 1
