"""`make demo`: a cluster, the chart, a job that trains, loses a rank on the way and goes on. `make demo-down` ends it.

Runs on the embedded cluster (CLUSTER=local, the default) or on the current context (CLUSTER=kubeconfig: there the
images must be pullable, and the S3 of deploy/examples/tiny.yaml reachable).
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
LOCALCLUSTER = [sys.executable, str(ROOT / "deploy" / "localcluster")]
NAMESPACE = "deepseekjob-demo"
SYSTEM_NAMESPACE = "deepseekjob-system"
JOB = "tiny"
KILL_AT_STEP = 45
LIMIT_SECONDS = 900.0
KILL_RANKS = (
    "import os,signal,pathlib\n"
    "for p in pathlib.Path('/proc').glob('[0-9]*'):\n"
    "    try:\n"
    "        if (p/'comm').read_text().startswith('rank-'):\n"
    "            os.kill(int(p.name), signal.SIGKILL)\n"
    "    except OSError:\n"
    "        continue\n"
)


class DemoError(Exception):
    """One sentence for the person who typed `make demo`."""


def say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m", flush=True)


def run(*words: str, quiet: bool = False, stdin: str | None = None) -> str:
    """Run a command; with `quiet` its output is returned, otherwise it is shown."""
    done = subprocess.run(words, text=True, input=stdin, capture_output=quiet, check=False)
    if done.returncode:
        detail = f": {done.stderr.strip()}" if quiet else ""
        raise DemoError(f"`{' '.join(words[:6])}` failed{detail}")
    return done.stdout or ""


def is_local() -> bool:
    choice = os.environ.get("CLUSTER", "local")
    if choice not in ("local", "kubeconfig"):
        raise DemoError(f"CLUSTER is {choice!r}; use local (the embedded cluster) or kubeconfig (the current context)")
    return choice == "local"


def cache_folder() -> Path:
    return Path(os.environ.get("DEEPSEEKJOB_CACHE") or Path.home() / ".cache" / "deepseekjob")


def bring_up() -> None:
    say("1/4  A Kubernetes on this machine (compiling it takes about 15 minutes the first time, seconds later)")
    run(*LOCALCLUSTER, "up")
    os.environ["PATH"] = f"{cache_folder() / 'bin' / 'current'}:{os.environ['PATH']}"
    os.environ["KUBECONFIG"] = str(cache_folder() / "run" / "admin.conf")
    say("2/4  The operator's and the trainer's image, built into its node")
    run(*LOCALCLUSTER, "build-image", "operator")
    run(*LOCALCLUSTER, "build-image", "trainer")


def install(local: bool) -> None:
    say(f"3/4  The chart, into namespace {SYSTEM_NAMESPACE}")
    tag = ["--set", "image.tag=dev"] if local else []
    chart = str(ROOT / "charts" / "deepseekjob")
    run(
        "helm",
        "upgrade",
        "--install",
        "deepseekjob",
        chart,
        "-n",
        SYSTEM_NAMESPACE,
        "--create-namespace",
        *tag,
        quiet=True,
    )
    if local:  # the tag stays the same when the image changes
        run("kubectl", "-n", SYSTEM_NAMESPACE, "rollout", "restart", "deployment/deepseekjob", quiet=True)
    run("kubectl", "-n", SYSTEM_NAMESPACE, "rollout", "status", "deployment/deepseekjob", "--timeout=180s")


def apply() -> None:
    say(f"4/4  deploy/examples/tiny.yaml, into namespace {NAMESPACE}")
    run("kubectl", "delete", "namespace", NAMESPACE, "--ignore-not-found", quiet=True)
    run("kubectl", "create", "namespace", NAMESPACE, quiet=True)
    examples = ROOT / "deploy" / "examples"
    run("kubectl", "-n", NAMESPACE, "apply", "-f", str(examples / "tiny-secret.yaml"))
    job = yaml.safe_load((examples / "tiny.yaml").read_text())
    # A run outlives its job: shown again, the demo begins one of its own instead of finding itself complete.
    job["spec"]["checkpoint"]["run"] = f"demo/{int(time.time())}"
    run("kubectl", "-n", NAMESPACE, "apply", "-f", "-", stdin=json.dumps(job))


def status() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("kubectl", "-n", NAMESPACE, "get", "dsj", JOB, "-o", "json", quiet=True))
    return dict(found.get("status") or {})


def kill_a_rank(over: threading.Event) -> None:
    """Wait for the step, then SIGKILL the rank of the pod of slot 1."""
    while not over.wait(1.0):
        if int(status().get("step") or 0) >= KILL_AT_STEP:
            pod = run(
                "kubectl", "-n", NAMESPACE, "get", "pods", "-l", "ciuic.io/slot=1", "-o", "name", quiet=True
            ).split()
            run("kubectl", "-n", NAMESPACE, "exec", pod[-1], "--", "python", "-c", KILL_RANKS, quiet=True)
            return


def watch() -> None:
    over = threading.Event()
    killer = threading.Thread(target=kill_a_rank, args=(over,), daemon=True)
    killer.start()
    cli = [sys.executable, "-m", "ciuic_cli", "status", JOB, "-n", NAMESPACE, "--watch"]
    try:
        subprocess.run(cli, timeout=LIMIT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise DemoError(f"the job was not complete after {int(LIMIT_SECONDS)} s; see the lines above") from None
    finally:
        over.set()


def tell() -> None:
    end = status()
    if end.get("state") != "Complete":
        raise DemoError(f"the job ended as {end.get('state')}: {end.get('message')}")
    failure = end.get("lastFailure") or {}
    say("What happened")
    print(
        f"  The job trained to step {end['step']} of {end['totalSteps']}; loss {end['loss']}, held out {end['evalLoss']}."
    )
    print(f"  On the way {failure.get('message', 'nothing failed')}.")
    print(
        f"  It went on as attempt {end['attempt']} {failure.get('recoveredSeconds', '?')} s later, from a checkpoint."
    )
    say("Look around")
    print(f"  export KUBECONFIG={os.environ.get('KUBECONFIG', '')} PATH={cache_folder() / 'bin' / 'current'}:$PATH")
    print(f"  kubectl -n {NAMESPACE} get dsj -o wide")
    print(f"  kubectl -n {NAMESPACE} describe dsj {JOB}")
    print(f"  kubectl -n {NAMESPACE} logs -l ciuic.io/job={JOB} --tail=20")
    print(f"  pip install '.[cli]' && kubectl deepseek history {JOB} -n {NAMESPACE}")
    print("  make demo-down   removes the cluster and everything in it")


def main() -> None:
    try:
        local = is_local()
        if local:
            bring_up()
        install(local)
        apply()
        say(f"The job. After step {KILL_AT_STEP} its rank 1 is killed by SIGKILL, to see it go on")
        watch()
        tell()
    except DemoError as error:
        sys.exit(f"demo: {error}")


if __name__ == "__main__":
    main()
