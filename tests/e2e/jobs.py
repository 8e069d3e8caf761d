"""One DeepSeekJob on the real cluster, as a test sees it: apply, wait, look, break. Used by the e2e tests."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

S3_ENDPOINT = "http://10.88.0.1:7070"
S3_BUCKET = "ckpt"
S3_KEY, S3_SECRET = "deepseek", "deepseek-secret"
SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "s3"},
    "stringData": {"AWS_ACCESS_KEY_ID": S3_KEY, "AWS_SECRET_ACCESS_KEY": S3_SECRET},
}

FIND_RANKS = """
import os, signal, sys
for name in os.listdir('/proc'):
    if not name.isdigit() or int(name) in (1, os.getpid()):
        continue
    try:
        env = open(f'/proc/{name}/environ', 'rb').read().split(b'\\0')
        forked = open(f'/proc/{name}/comm').read().startswith('rank-')
    except OSError:
        continue
    if forked or any(entry.startswith(b'CIUIC_ATTEMPT=') for entry in env):
        print(name)
        if len(sys.argv) > 1:
            os.kill(int(name), getattr(signal, sys.argv[1]))
"""
"""Lists the processes of the ranks in a pod, and sends them a signal when one is named. A forked one has its parent's
environment in /proc, but a name; what exec started, the reverse."""


REACH = """
import os, pathlib, signal, sys, time
from ciuic_trainer.shared.progress import ProgressReader
step, sent = int(sys.argv[1]), sys.argv[2:]
deadline = time.monotonic() + 120
while time.monotonic() < deadline:
    paths = pathlib.Path('/tmp/ciuic').glob('attempt-*/progress-*')
    seen = [record for path in paths if (record := ProgressReader(path).read()) is not None]
    newest = max(seen, key=lambda record: record.attempt, default=None)
    if newest is not None and newest.step >= step:
        if sent:
            os.kill(newest.pid, getattr(signal, sent[0]))
        print(newest.step)
        sys.exit(0)
    time.sleep(0.005)
sys.exit(f'step {step} was not reached: {seen}')
"""
"""Waits in a pod until its rank has completed a step, and then sends it a signal at once: whatever the machine's speed,
that is in the middle of the training. A rank that is stopped holds all others in the next collective."""


class Kubectl(Protocol):
    def __call__(self, *args: str, stdin: str | dict[str, Any] | None = None, check: bool = True) -> Any: ...


class Timeout(AssertionError):
    """A condition that did not come true; says what was seen last."""


def wait_until(what: str, look: Callable[[], T], seconds: float, describe: Callable[[], str] = str) -> T:
    """The first true value of `look`, asked four times a second."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise Timeout(f"not within {seconds:.0f} s: {what}\n{describe()}")
        time.sleep(0.25)


@dataclass
class Run:
    """What `losses` reads from the logs: per attempt and step the exact loss, and how often each pair was logged."""

    losses: dict[tuple[int, int], float]
    evaluations: dict[int, float]
    repeats: list[tuple[int, int]]

    def by_step(self) -> dict[int, float]:
        """The loss of each step in the attempt that counts: the newest that made it."""
        return {step: self.losses[attempt, step] for attempt, step in sorted(self.losses)}


@dataclass
class TrainingJob:
    kubectl: Kubectl
    namespace: str
    name: str
    logs_kept: dict[str, str]
    """Of pods that were deleted on the way, kept by `keep_logs`."""

    def get(self) -> dict[str, Any]:
        found = self.kubectl("get", "dsj", self.name, "-n", self.namespace, "-o", "json", check=False)
        return dict(json.loads(found.stdout)) if found.returncode == 0 else {}

    def status(self) -> dict[str, Any]:
        return dict(self.get().get("status") or {})

    def describe(self) -> str:
        pods = self.kubectl("get", "pods", "-n", self.namespace, "-o", "wide", check=False).stdout
        return f"status: {json.dumps(self.status(), indent=1)}\n{pods}\n{self.tail()}"

    def tail(self) -> str:
        selector = f"ciuic.io/job={self.name}"
        arguments = ("logs", "-n", self.namespace, "-l", selector, "--tail=25", "--prefix")
        return str(self.kubectl(*arguments, check=False).stdout)

    def wait(self, what: str, holds: Callable[[dict[str, Any]], Any], seconds: float = 120.0) -> dict[str, Any]:
        """Until the status holds; fails early when the job ended otherwise."""

        def look() -> dict[str, Any]:
            status = self.status()
            if holds(status):
                return status
            if status.get("state") in ("Failed", "Complete"):
                raise Timeout(f"ended as {status['state']} before: {what}\n{self.describe()}")
            return {}

        return wait_until(what, look, seconds, self.describe)

    def wait_state(self, state: str, seconds: float = 180.0) -> dict[str, Any]:
        return self.wait(f"state {state}", lambda status: status.get("state") == state, seconds)

    def wait_reason(self, reason: str, seconds: float = 60.0) -> dict[str, Any]:
        return self.wait(f"reason {reason}", lambda status: status.get("reason") == reason, seconds)

    def wait_committed(self, step: int, seconds: float = 120.0) -> dict[str, Any]:
        def holds(status: dict[str, Any]) -> bool:
            return int((status.get("lastCommitted") or {}).get("step", 0)) >= step

        return self.wait(f"step {step} is in S3", holds, seconds)

    def wait_step(self, step: int, seconds: float = 120.0) -> dict[str, Any]:
        return self.wait(f"step {step}", lambda status: int(status.get("highestStep") or 0) >= step, seconds)

    def pods(self) -> dict[int, dict[str, Any]]:
        """By slot, the newest that is not being deleted."""
        selector = f"ciuic.io/job={self.name}"
        found = json.loads(self.kubectl("get", "pods", "-n", self.namespace, "-l", selector, "-o", "json").stdout)
        living = [pod for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]
        living.sort(key=lambda pod: int(pod["metadata"]["labels"]["ciuic.io/incarnation"]))
        return {int(pod["metadata"]["labels"]["ciuic.io/slot"]): pod for pod in living}

    def uids(self) -> dict[int, str]:
        return {slot: pod["metadata"]["uid"] for slot, pod in self.pods().items()}

    def pod_name(self, slot: int) -> str:
        return str(self.pods()[slot]["metadata"]["name"])

    def execute(self, slot: int, *command: str) -> str:
        return str(
            self.kubectl("exec", "-n", self.namespace, self.pod_name(slot), "-c", "trainer", "--", *command).stdout
        )

    def reach(self, step: int, slot: int = 0, signal: str | None = None) -> int:
        """Until the rank of a slot has completed `step`; sends it a signal there. Returns the step it is at."""

        def runs() -> bool:
            pod = self.pods().get(slot, {})
            return any("running" in c["state"] for c in pod.get("status", {}).get("containerStatuses", []))

        wait_until(f"the container of slot {slot} runs", runs, 60, self.describe)
        return int(self.execute(slot, "python", "-c", REACH, str(step), *([signal] if signal else [])))

    def hold(self, step: int, slot: int = 0) -> int:
        """All ranks stand still after `step`, or a little later, until `go_on` or a restart."""
        return self.reach(step, slot, "SIGSTOP")

    def go_on(self, slot: int = 0) -> None:
        self.signal_ranks(slot, "SIGCONT")

    def signal_ranks(self, slot: int, signal: str = "SIGKILL") -> list[int]:
        return [int(pid) for pid in self.execute(slot, "python", "-c", FIND_RANKS, signal).split()]

    def delete_pod(self, slot: int, grace_seconds: int | None = None) -> str:
        name = self.pod_name(slot)
        self.keep_logs(name)
        grace = [] if grace_seconds is None else [f"--grace-period={grace_seconds}"]
        self.kubectl("delete", "pod", name, "-n", self.namespace, "--wait=false", *grace)
        return name

    def keep_logs(self, pod: str) -> None:
        self.logs_kept[pod] = self.kubectl("logs", pod, "-n", self.namespace, "-c", "trainer", check=False).stdout

    def delete(self, wait: bool = True) -> None:
        self.kubectl("delete", "dsj", self.name, "-n", self.namespace, f"--wait={str(wait).lower()}")

    def patch(self, spec: dict[str, Any], check: bool = True) -> Any:
        body = json.dumps({"spec": spec})
        return self.kubectl("patch", "dsj", self.name, "-n", self.namespace, "--type=merge", "-p", body, check=check)

    def events(self) -> list[tuple[str, str]]:
        """(reason, message) of the job's events, oldest first."""
        found = json.loads(self.kubectl("get", "events", "-n", self.namespace, "-o", "json").stdout)
        mine = [event for event in found["items"] if _regards(event).get("name") == self.name]
        mine.sort(key=lambda event: event["metadata"]["creationTimestamp"])
        return [(event["reason"], event.get("note") or event.get("message") or "") for event in mine]

    def run(self) -> Run:
        """All that rank 0 logged in JSON, in every pod of slot 0 that there was."""
        selector = f"ciuic.io/job={self.name},ciuic.io/slot=0"
        names = self.kubectl("get", "pods", "-n", self.namespace, "-l", selector, "-o", "name").stdout.split()
        for name in names:
            self.keep_logs(name.removeprefix("pod/"))
        run = Run(losses={}, evaluations={}, repeats=[])
        for text in self.logs_kept.values():
            for line in text.splitlines():
                _read(line, run)
        return run


def _regards(event: dict[str, Any]) -> dict[str, Any]:
    return dict(event.get("regarding") or event.get("involvedObject") or {})


def _read(line: str, run: Run) -> None:
    start = line.find("{")
    if start < 0 or '"step"' not in line:
        return
    try:
        record = json.loads(line[start:])
    except ValueError:
        return
    if record.get("kind") == "eval":
        run.evaluations[record["step"]] = record["loss"]
    if record.get("kind") != "step":
        return
    key = (record["attempt"], record["step"])
    if key in run.losses:
        run.repeats.append(key)
    run.losses[key] = record["loss"]


def tiny(name: str, run: str, steps: int = 60, **changes: Any) -> dict[str, Any]:
    """The tiny model on two pods of one rank: memory copies every 2 steps, S3 every 10."""
    spec: dict[str, Any] = {
        "nodes": 2,
        "accelerator": "cpu",
        "training": {"steps": steps, "evaluation": {"everySteps": 20, "batches": 2}},
        "checkpoint": {
            "path": f"s3://{S3_BUCKET}/e2e",
            "run": run,
            "secretName": "s3",
            "s3": {"endpoint": S3_ENDPOINT, "region": "us-east-1", "pathStyle": True},
            "every": {"steps": 10},
            "memory": {"everySteps": 2},
        },
        "memory": {"shm": "256Mi"},
    }
    return job(name, merge(spec, changes))


def script(name: str, code: str, nodes: int = 2, **changes: Any) -> dict[str, Any]:
    """An own script: starts in a second, for what is not about training."""
    spec = {"nodes": nodes, "accelerator": "cpu", "command": ["python", "-u", "-c", code], "memory": {"shm": "64Mi"}}
    return job(name, merge(spec, changes))


def job(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    labels = {"ciuic.io/watchdog": "true"}
    return {
        "apiVersion": "ciuic.io/v1alpha1",
        "kind": "DeepSeekJob",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`changes` over `base`, maps merged, None removes."""
    result = dict(base)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merge(result[key], value)
        else:
            result[key] = value
    return result
