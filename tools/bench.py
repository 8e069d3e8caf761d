"""`make bench`: the figures of docs/benchmarks.md, measured on the local cluster, which `make test` or `make demo` leaves up.

Writes the file anew, with date, machine and commit. KILLS (20) says how many recoveries of each kind are timed.
"""

import gc
import json
import os
import platform
import statistics
import subprocess
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jobs
from rich.progress import Progress

import builders
from ciuic_operator import planner

ROOT = Path(__file__).parent.parent
CACHE = Path(os.environ.get("DEEPSEEKJOB_CACHE") or Path.home() / ".cache" / "deepseekjob")
KILLS = int(os.environ.get("KILLS", "20"))
STARTS = 3
PODS = 4096
KILL = """
import os, signal, time
pids = []
for name in os.listdir('/proc'):
    if name.isdigit():
        try:
            if open(f'/proc/{name}/comm').read().startswith('rank-'):
                pids.append(int(name))
        except OSError:
            continue
WIPE
print(time.time())
for pid in pids:
    os.kill(pid, signal.SIGKILL)
"""
WIPE = "import glob; [open(p, 'r+b').truncate(0) for p in glob.glob('/ciuic/memory/rank-*/buffer-*')]"


def kubectl(*args: str, stdin: str | dict[str, Any] | None = None, check: bool = True) -> Any:
    text = json.dumps(stdin) if isinstance(stdin, dict) else stdin
    env = os.environ | {"KUBECONFIG": os.environ.get("KUBECONFIG") or str(CACHE / "run" / "admin.conf")}
    command = [str(CACHE / "bin" / "current" / "kubectl"), *args]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=check, env=env)


def seconds_of_plans() -> list[float]:
    pods = tuple(builders.pod(slot) for slot in range(PODS))
    reports = {slot: builders.trains(slot) for slot in range(PODS)}
    taken = []
    gc.freeze()  # as the operator does
    for _ in range(30):
        world = builders.world(builders.job(builders.status(), nodes=PODS), pods, reports)
        began = time.perf_counter()
        planner.plan(world)
        taken.append(time.perf_counter() - began)
    return taken


def records(job: jobs.TrainingJob, kind: str, attempt: int) -> list[dict[str, Any]]:
    """Rank 0's JSON log lines of one kind and attempt, oldest first."""
    text = kubectl("logs", job.pod_name(0), "-n", job.namespace, "-c", "trainer", check=False).stdout
    found = []
    for line in text.splitlines():
        if '"kind"' in line and f'"{kind}"' in line:
            record = json.loads(line[line.index("{") :])
            if record["kind"] == kind and record["attempt"] == attempt:
                found.append(record)
    return found


def start_parts(namespace: str) -> dict[str, float]:
    """Seconds from `kubectl apply` to the first completed step, and what they went into."""
    job = jobs.TrainingJob(kubectl, namespace, "start", {})
    applied = time.time()
    kubectl(
        "apply", "-n", namespace, "-f", "-", stdin=jobs.tiny("start", f"bench-{uuid.uuid4().hex[:8]}", steps=1_000_000)
    )
    job.wait_step(1)
    jobs.wait_until("the first step's line", lambda: records(job, "step", 1), 30)
    pod = job.pods()[0]
    conditions = {c["type"]: c for c in pod["status"]["conditions"]}
    scheduled = moment(conditions["PodScheduled"]["lastTransitionTime"])
    container = moment(pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"])
    (begun,) = records(job, "start", 1)
    first = records(job, "step", 1)[0]
    imported = begun["time"] - begun["seconds"]
    job.delete()
    jobs.wait_until("the pods are gone", lambda: not job.pods(), 60)
    return {
        "schedule": scheduled - applied,
        "container": container - scheduled,
        "agent, directive, import": imported - container,
        "init (process group, engine)": begun["time"] - imported,
        "first step": first["time"] - begun["time"],
        "all": first["time"] - applied,
    }


def moment(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()


def recoveries(job: jobs.TrainingJob, tier: str, tell: Callable[[], None]) -> list[float]:
    """Seconds from SIGKILL of slot 1's rank to the next completed step, again and again."""
    wipe = tier == "S3"
    taken = []
    for _ in range(KILLS):
        attempt = int(job.status()["attempt"])
        wait_for_steps(job, attempt, 12)
        if wipe:
            job.execute(0, "python", "-c", WIPE)
        killed = float(job.execute(1, "python", "-c", KILL.replace("WIPE", WIPE if wipe else "")))
        taken.append(wait_for_steps(job, attempt + 1, 1)[0]["time"] - killed)
        must_have_come_from(job, tier)
        tell()
    return taken


def must_have_come_from(job: jobs.TrainingJob, tier: str) -> None:
    """A recovery from another tier than is timed would be a figure of something else."""
    restored = job.status()["restored"]
    said = f"(checkpoint {restored['step']}.a{restored['attempt']}, from {tier})"
    jobs.wait_until(
        f"an event that says {said}", lambda: any(said in note for _, note in job.events()), 10, job.describe
    )


def wait_for_steps(job: jobs.TrainingJob, attempt: int, count: int) -> list[dict[str, Any]]:
    def look() -> list[dict[str, Any]]:
        found = records(job, "step", attempt)
        return found if len(found) >= count else []

    return jobs.wait_until(f"{count} steps of attempt {attempt}", look, 120, job.describe)


def row(name: str, taken: list[float], unit: float = 1.0) -> str:
    ordered = sorted(taken)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    figures = (statistics.median(ordered), p95, ordered[0], ordered[-1])
    return f"| {name} | {len(taken)} | " + " | ".join(f"{figure * unit:.2f}" for figure in figures) + " |"


def machine() -> str:
    model = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**30
    return f"{os.cpu_count()} cores ({model.split(':')[1].strip()}), {memory} GiB, Linux {platform.release()}"


def report(plans: list[float], starts: list[dict[str, float]], memory: list[float], s3: list[float]) -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    parts = "\n".join(
        f"| {part} | " + " | ".join(f"{start[part]:.2f}" for start in starts) + " |" for part in starts[0]
    )
    head = "| what | n | p50 | p95 | least | most |\n| --- | --- | --- | --- | --- | --- |"
    return f"""# Benchmarks

Made by `make bench` on {datetime.now(UTC):%Y-%m-%d}, commit {commit.stdout.strip()}, on one machine that was the cluster,
the store and both ranks at once: {machine()}. No GPU: nothing here says how fast a GPU trains.

## From a fault to the next completed step

The tiny model on two pods, ZeRO-3 over gloo, one rank killed by SIGKILL. Seconds on the clock of the machine, from just
before the signal to the time in rank 0's log line of the first completed step of the next attempt. In both rows the pods
stay. "From S3": the memory copies of both pods are emptied just before, so that the shards are read from the store.

{head}
{row("killed, goes on from memory", memory)}
{row("killed, goes on from S3", s3)}

## From `kubectl apply` to the first completed step

Seconds, {STARTS} starts with images present. Kubernetes tells scheduling and container start in whole seconds.

| part | {" | ".join(str(number + 1) for number in range(STARTS))} |
| --- | {" | ".join("---" for _ in starts)} |
{parts}

## One pass of the planner

Milliseconds for a healthy job of {PODS} pods, directives included.

{head}
{row("planner.plan", plans, 1000)}
"""


def main() -> None:
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", namespace)
    try:
        with Progress() as progress:
            task = progress.add_task("planner", total=1 + STARTS + 2 * KILLS)

            def tell() -> None:
                progress.advance(task)

            plans = seconds_of_plans()
            tell()
            progress.update(task, description="starts")
            kubectl("apply", "-n", namespace, "-f", "-", stdin=jobs.SECRET)
            starts = []
            for _ in range(STARTS):
                starts.append(start_parts(namespace))
                tell()
            progress.update(task, description="recoveries")
            body = jobs.tiny(
                "kills", f"bench-{uuid.uuid4().hex[:8]}", steps=1_000_000, watchdog={"restarts": {"max": 1000}}
            )
            kubectl("apply", "-n", namespace, "-f", "-", stdin=body)
            job = jobs.TrainingJob(kubectl, namespace, "kills", {})
            job.wait_step(1)
            memory = recoveries(job, "memory", tell)
            s3 = recoveries(job, "S3", tell)
    finally:
        kubectl("delete", "namespace", namespace, "--wait=false", check=False)
    (ROOT / "docs" / "benchmarks.md").write_text(report(plans, starts, memory, s3))
    print((ROOT / "docs" / "benchmarks.md").read_text())


if __name__ == "__main__":
    main()
