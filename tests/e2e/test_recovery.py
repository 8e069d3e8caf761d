"""What can go wrong with checkpoints: none yet, lost, store away, altered, another job's, applied again at once."""

import json
import threading
from collections.abc import Callable

import pytest
from conftest import S3, Apply, Command, Operator
from jobs import FIND_RANKS, TrainingJob, tiny, wait_until

pytestmark = pytest.mark.e2e


def test_a_pod_deleted_before_the_first_commit(apply: Apply, run_name: str) -> None:
    job = apply(tiny("tiny", run_name, steps=60, checkpoint={"every": {"steps": 60}, "memory": {"everySteps": 60}}))
    job.hold(4)
    job.delete_pod(1, grace_seconds=0)
    status = job.wait_state("Complete")
    assert status["attempt"] == 2
    assert any(reason == "NoCheckpointYet" and "step 0" in note for reason, note in job.events()), job.events()
    assert sorted(step for attempt, step in job.run().losses if attempt == 2) == list(range(1, 61))


def test_s3_emptied_after_a_commit(apply: Apply, run_name: str, s3: S3, operator: Operator) -> None:
    job = apply(tiny("tiny", run_name, steps=500))
    job.hold(12)
    job.wait_committed(10)
    pods = [job.pod_name(slot) for slot in (0, 1)]
    operator.scale(0)
    try:
        # Not by force: an object deleted by force goes before its container, which would still commit.
        job.kubectl("delete", "pod", *pods, "-n", job.namespace, "--wait=true")
        s3.delete(*[key for key in s3.keys(run_name) if "/OWNER" not in key])
    finally:
        operator.scale(1)
    status = job.wait_state("Failed", 90)
    assert status["reason"] == "CheckpointsLost", status["message"]
    assert "step 0" in status["message"] and not status["released"]


def test_s3_down_while_a_rank_dies(apply: Apply, run_name: str, store_down: Callable[[], None]) -> None:
    job = apply(tiny("tiny", run_name))
    at = job.hold(12)
    job.wait_committed(10)
    store_down()
    job.go_on()
    job.reach(at + 4, slot=1, signal="SIGKILL")
    job.wait("goes on from memory", lambda status: status.get("attempt") == 2 and status["state"] == "Running")
    assert int(job.status()["restored"]["step"]) > at, "from memory, newer than what S3 has"
    store_down()
    status = job.wait_state("Complete")
    assert status["lastCommitted"]["step"] == 60


def test_applied_again_at_once(apply: Apply, run_name: str, s3: S3) -> None:
    body = tiny("tiny", run_name, steps=40)
    job = apply(body)
    job.hold(12)
    job.wait_committed(10)
    old = set(job.uids().values())
    job.delete(wait=False)
    wait_until("the object is gone", lambda: not job.get(), 10)
    apply(body)
    status = job.wait_state("Complete")
    assert status["attempt"] == 2 and status["lineage"][-1]["restored"]["step"] >= 10
    assert not old & set(job.uids().values()), "no dying pod is adopted"


def test_applied_again_with_all_agents_killed(apply: Apply, run_name: str) -> None:
    body = tiny("tiny", run_name, steps=40)
    job = apply(body)
    job.hold(12)
    job.wait_committed(10)
    pods = [job.pod_name(slot) for slot in (0, 1)]
    job.delete(wait=False)
    job.kubectl("delete", "pod", *pods, "-n", job.namespace, "--grace-period=0", "--force", "--wait=false", check=False)
    wait_until("the object is gone", lambda: not job.get(), 10)
    apply(body)
    status = job.wait_state("Complete")
    assert status["attempt"] == 2 and status["lineage"][-1]["restored"]["step"] >= 10


def test_a_second_job_on_a_living_run_waits(apply: Apply, run_name: str) -> None:
    first = apply(tiny("first", run_name, steps=1000))
    first.wait_step(2)
    second = apply(tiny("second", run_name, steps=1000))
    status = second.wait_reason("RunOwned", 60)
    assert "first" in status["message"] and "checkpoint.run" in status["message"]
    assert status["attempt"] == 0 and first.status()["restarts"]["total"] == 0
    first_attempt = first.status()["attempt"]
    assert first_attempt == 1


def suspend_at(job: TrainingJob, step: int) -> None:
    job.hold(step + 2)  # the checkpoint is written after its step is completed
    job.wait_committed(step)
    job.patch({"runPolicy": {"suspend": True}})
    job.wait_reason("Suspending")
    job.go_on()
    job.wait_state("Suspended", 60)


def test_an_altered_shard_is_refused_and_said(apply: Apply, run_name: str, s3: S3) -> None:
    job = apply(tiny("tiny", run_name, steps=40))
    suspend_at(job, 20)
    newest, before = s3.manifests(run_name)[-1], s3.manifests(run_name)[-2]
    shard = next(key for key in s3.keys(run_name) if f"/steps/{newest[0]}.a{newest[1]}/" in key and "rank-00001" in key)
    data = bytearray(s3.read(shard))
    data[len(data) // 2] ^= 0xFF
    s3.write(shard, bytes(data))
    job.patch({"runPolicy": {"suspend": False}})
    status = job.wait("restored", lambda status: status.get("state") == "Running")
    assert status["restored"] == {"step": before[0], "attempt": before[1]}
    told = json.dumps(status) + json.dumps(job.events())
    assert f"{newest[0]}.a{newest[1]}" in told, "the one that was passed over is named"
    job.wait_state("Complete")


def test_a_missing_shard_is_refused_and_said(apply: Apply, run_name: str, s3: S3) -> None:
    job = apply(tiny("tiny", run_name, steps=40))
    suspend_at(job, 20)
    newest, before = s3.manifests(run_name)[-1], s3.manifests(run_name)[-2]
    s3.delete(*[key for key in s3.keys(run_name) if f"/steps/{newest[0]}.a{newest[1]}/rank-00001" in key])
    job.patch({"runPolicy": {"suspend": False}})
    status = job.wait("restored", lambda status: status.get("state") == "Running")
    assert status["restored"] == {"step": before[0], "attempt": before[1]}
    assert any("rank-00001" in note for _, note in job.events()), job.events()
    job.wait_state("Complete")


def test_two_crashes_around_one_step(apply: Apply, run_name: str) -> None:
    """Two ranks die within the copying of a step, twice: what is restored is always one attempt's, whole."""
    job = apply(tiny("tiny", run_name, steps=60, checkpoint={"memory": {"everySteps": 1}}))
    for attempt, slot in ((2, 1), (3, 0)):
        job.reach(15, slot, "SIGKILL")
        expected = {"attempt": attempt, "state": "Running"}
        job.wait(f"attempt {attempt} trains", lambda status: expected.items() <= status.items())  # noqa: B023
    job.wait_state("Complete")
    assert job.run().repeats == []


def kill_all(kubectl: Command, namespace: str, pods: list[str]) -> None:
    """SIGKILL to the ranks of all pods at the same time."""
    threads = [
        threading.Thread(
            target=kubectl, args=("exec", "-n", namespace, pod, "--", "python", "-c", FIND_RANKS, "SIGKILL")
        )
        for pod in pods
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_all_ranks_killed_at_once_cost_one_restart(apply: Apply, run_name: str, kubectl: Command) -> None:
    job = apply(tiny("tiny", run_name, steps=40))
    job.hold(15)
    kill_all(kubectl, job.namespace, [job.pod_name(slot) for slot in (0, 1)])
    status = job.wait_state("Complete")
    assert status["attempt"] == 2 and status["restarts"]["total"] == 1
