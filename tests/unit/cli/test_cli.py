"""What the command line tool says, from objects recorded on a real cluster: views, log selection, refusals in plain words."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ciuic_cli import logs, submitting, view
from ciuic_cli.errors import CliError, Refused
from ciuic_cli.nextsteps import QUIET, STEPS
from ciuic_cli.snapshot import Snapshot, snapshot

RECORDED = Path(__file__).parent / "recorded"
NAMES = sorted(path.stem for path in RECORDED.glob("*.json"))
NOW = datetime(2026, 11, 30, 23, 59, tzinfo=UTC)
JOB = """
apiVersion: ciuic.io/v1alpha1
kind: DeepSeekJob
metadata: {name: tiny}
spec:
  nodes: 2
  training: {steps: 10}
"""


def recorded(name: str) -> Snapshot:
    body = json.loads((RECORDED / f"{name}.json").read_text())
    return snapshot(body["job"], body["pods"])


def rendered(job: Snapshot, width: int = 100) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view.job_view(job, NOW))
    return console.export_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_view_says_state_reason_and_message(name: str) -> None:
    job, text = recorded(name), " ".join(rendered(recorded(name)).split())
    assert job.state in text and job.reason in text
    assert " ".join(job.message.split())[:60] in text
    for pod in job.pods[:3]:
        assert pod.name in text


def test_a_failed_job_names_the_next_command() -> None:
    text = rendered(recorded("crash-loop"))
    assert "kubectl deepseek logs" in text and "--rank failed" in text


def test_a_running_job_shows_its_progress() -> None:
    job = recorded("running")
    text = rendered(job)
    assert f"loss {job.loss}" in text and f"of {job.total_steps:,}" in text
    assert f"loss {job.loss}" in view.job_line(job)


def test_each_reason_has_a_next_step_or_is_one_to_wait_in() -> None:
    assert not set(STEPS) & QUIET


def test_a_rank_is_found_in_its_slot() -> None:
    job = recorded("running")
    chosen = logs.select(job, "1")
    assert chosen.ranks == frozenset({1})
    assert chosen.shown("[rank 1] step 3", slot=1) == "[rank 1] step 3"
    assert chosen.shown("[rank 0] step 3", slot=1) is None
    assert chosen.shown("[agent] connected", slot=1) is None
    assert logs.select(job, "all").shown("[agent] connected", slot=1) == "[slot 1] [agent] connected"


@pytest.mark.parametrize(("rank", "words"), [("99", "write 0 to 1"), ("first", "write a number, all or failed")])
def test_a_rank_that_is_not_there_is_named(rank: str, words: str) -> None:
    with pytest.raises(CliError, match=words):
        logs.select(recorded("running"), rank)


def test_the_failed_rank() -> None:
    job = recorded("restarting")
    assert job.last_failure is not None
    assert logs.select(job, "failed").ranks == frozenset({job.last_failure.rank})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("name: tiny", f"name: {'t' * 60}"), "must not have more than 50"),
        (("nodes: 2", "nodes: two"), "spec.nodes"),
        (("ciuic.io/v1alpha1", "ciuic.io/v1"), "write ciuic.io/v1alpha1"),
        (("kind: DeepSeekJob", "kind: Deployment"), "apply the Deployment with kubectl"),
        (("steps: 10", "steps: [10"), "is no YAML"),
    ],
)
def test_a_mistake_is_named_before_anything_is_sent(change: tuple[str, str], words: str) -> None:
    with pytest.raises(CliError, match=words):
        submitting.read(JOB.replace(*change), "job.yaml")


def test_an_unknown_field_is_a_warning() -> None:
    (warning,) = submitting.read(JOB.replace("steps: 10", "steps: 10, stepz: 3"), "job.yaml").warnings
    assert "spec.training.stepz" in warning


def test_a_refused_checkpoint_label_is_explained() -> None:
    document: dict[str, Any] = {"metadata": {"labels": {"ciuic.io/checkpoint-path": "s3://my-bucket/ckpts"}}}
    refusal = Refused("invalid", code=422, causes=(("metadata.labels", "a valid label must be ..."),))
    text = submitting.explain(refusal, document)
    assert "path: s3://my-bucket/ckpts" in text and "no legal label value" in text
