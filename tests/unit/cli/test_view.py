"""What `status` shows, rendered without colour from recorded jobs."""

import pytest
from rich.console import Console

from ciuic_cli.snapshot import Snapshot, snapshot
from ciuic_cli.view import MAX_PODS, duration, job_line, job_list, job_view
from unit.cli.recordings import NAMES, NOW, load, recorded


def shown(job: Snapshot, width: int = 100) -> str:
    console = Console(width=width, record=True, color_system=None, file=None, quiet=False, force_terminal=False)
    with console.capture() as capture:
        console.print(job_view(job, NOW), crop=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def test_a_job_that_trains() -> None:
    text = shown(recorded("running", step=43, loss="4.8121", evalLoss="4.9003", tokensPerSecond=2153, etaSeconds=74))
    lines = text.splitlines()
    assert lines[0].startswith("tiny  Running  Training  for ")
    assert lines[1] == "all 2 ranks train, attempt 1."
    assert "43 of 120  ━" in text and "35 %  1m 14s to go" in text
    assert "loss 4.8121  ·  held out 4.9003  ·  2,153 tokens/s" in text
    assert "attempt      1, from step 0" in text
    assert "next" not in text and "failure" not in text


def test_a_job_that_went_on_after_a_kill() -> None:
    text = shown(recorded("complete"), width=140)
    assert "Complete  Completed  took 1m 07s" in text
    assert "120 of 120" in text and "100 %" in text and "to go" not in text
    assert "attempt      2, from checkpoint 55.a1" in text
    assert "restarts     1 (1 after failures, 0 after disruptions)" in text
    assert "checkpoints  S3 120.a2, " in text
    assert "failure      RankKilled, 30s ago, recovered in 11s" in text
    assert "rank 1 (slot 1, pod tiny-1-1, node node1) was killed by SIGKILL" in text
    assert "next" not in text, "nothing is left to do for a complete job"


def test_a_job_that_restarts_says_what_to_look_at() -> None:
    text = shown(recorded("restarting"))
    assert "Restarting  RankKilled" in text and "recovered" not in text
    assert "next         kubectl deepseek logs tiny -n cli-rec --rank failed --tail 40" in text


def test_a_failed_job_says_what_to_type() -> None:
    text = shown(recorded("crash-loop"))
    assert "crashing  Failed  CrashLoop  took 20s" in text
    assert "failure      RankFailed, " in text
    assert text.splitlines()[-1] == "next         kubectl deepseek logs crashing -n cli-rec --rank failed --tail 40"


def test_what_is_wrong_beside_the_state_is_shown() -> None:
    message = "the agents of tiny-0-0 look for another installation of the operator at elsewhere:9443"
    at = "2026-11-30T23:34:12Z"
    condition = {"type": "AgentsElsewhere", "status": "True", "message": message, "lastTransitionTime": at}
    text = shown(recorded("running", conditions=[condition]))
    assert "warning      AgentsElsewhere, for 1m 00s" in text and f"{message}." in text
    assert """next         kubectl -n cli-rec patch dsj tiny --type merge""" in text
    assert "warning" not in shown(recorded("running", conditions=[condition | {"status": "False"}]))
    assert "warning" not in shown(recorded("running", conditions=[condition | {"type": "Running"}]))


def test_pods_say_what_they_wait_for() -> None:
    text = shown(recorded("no-image"))
    row = next(line for line in text.splitlines() if "no-image-0-0" in line and "node1" in line)
    assert row.split()[:4] == ["0", "no-image-0-0", "node1", "ErrImagePull"]
    assert "next         kubectl -n cli-rec describe pods -l ciuic.io/job=no-image" in text


def test_the_command_is_not_wrapped() -> None:
    text = shown(recorded("running", state="Suspended", reason="Suspended"), width=60)
    assert """--type merge -p '{"spec":{"runPolicy":{"suspend":false}}}'""" in text.splitlines()[-1]


def test_a_job_that_nobody_has_seen() -> None:
    body = load("running")["job"]
    del body["status"]
    text = shown(snapshot(body, []))
    assert text.splitlines() == ["tiny  Pending", "the operator has not seen this job yet."]


def test_many_pods_show_those_that_do_not_run() -> None:
    body, pod = load("running")["job"], load("running")["pods"][0]
    pods = []
    for slot in range(40):
        labels = pod["metadata"]["labels"] | {"ciuic.io/slot": str(slot)}
        one = {**pod, "metadata": {**pod["metadata"], "name": f"tiny-{slot}-0", "labels": labels}}
        if slot == 37:
            one = {**one, "status": {"phase": "Pending", "containerStatuses": [
                {"name": "trainer", "restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff"}}}
            ]}}  # fmt: skip
        pods.append(one)
    text = shown(snapshot(body, pods))
    assert "tiny-37-0" in text and "ImagePullBackOff" in text
    assert f"and {40 - MAX_PODS} more Running" in text


@pytest.mark.parametrize("name", NAMES)
def test_every_recording_fits_a_narrow_terminal(name: str) -> None:
    for line in shown(recorded(name), width=80).splitlines():
        assert len(line) <= 80 or line.startswith("next")


def test_one_line_for_a_pipe() -> None:
    line = job_line(recorded("complete", tokensPerSecond=4602))
    assert line == (
        "Complete    Completed  step 120 of 120  loss 4.6201  4,602 tokens/s  attempt 2  restarts 1"
        "  (all 2 ranks ended well; the last checkpoint is step 120)"
    )


def test_the_list_of_jobs() -> None:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(job_list([recorded("complete"), recorded("crash-loop")], NOW))
    heading, first, second = (line.split() for line in capture.get().splitlines())
    assert heading == ["JOB", "STATE", "REASON", "READY", "RESTARTS", "STEP", "LOSS"]
    assert first[:3] == ["tiny", "Complete", "Completed"] and first[-1] == "4.6201"
    assert second[:3] == ["crashing", "Failed", "CrashLoop"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.9, "59s"), (60, "1m 00s"), (185, "3m 05s"), (7800, "2h 10m"), (273600, "3d 4h"), (-3, "0s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_pod_phases() -> None:
    body, pod = load("running")["job"], load("running")["pods"][0]

    def phase(metadata: dict[str, str] | None = None, **status: object) -> str:
        changed = {**pod, "metadata": {**pod["metadata"], **(metadata or {})}, "status": status or pod["status"]}
        return snapshot(body, [changed]).pods[0].phase

    assert phase() == "Running"
    assert phase({"deletionTimestamp": "2026-11-30T23:00:00Z"}) == "Terminating"
    assert phase(phase="Failed", reason="Evicted") == "Evicted"
    assert phase(phase="Pending", conditions=[{"type": "PodScheduled", "status": "False"}]) == "Unschedulable"
    state = {"terminated": {"reason": "OOMKilled"}}
    assert phase(phase="Running", containerStatuses=[{"name": "trainer", "state": state}]) == "OOMKilled"
