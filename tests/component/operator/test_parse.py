"""A job's body as a Job: what is filled in, what is a problem, what must be left alone."""

import copy
from typing import Any

import pytest

from ciuic_api.job import JobSpec
from ciuic_api.reasons import Reason
from ciuic_operator.parse import PLACEHOLDER, parse

BODY: dict[str, Any] = {
    "apiVersion": "ciuic.io/v1alpha1",
    "kind": "DeepSeekJob",
    "metadata": {
        "name": "tiny",
        "namespace": "team",
        "uid": "u-1",
        "resourceVersion": "12",
        "generation": 3,
        "creationTimestamp": "2026-11-30T12:00:00Z",
    },
    "spec": {"nodes": 2, "accelerator": "cpu", "training": {"steps": 10}},
}
ANNOTATION = "ciuic.io/checkpoint-path"
LABEL = "ciuic.io/watchdog"


def body(meta: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    made = copy.deepcopy(BODY)
    made["metadata"] |= meta or {}
    made["spec"] |= spec
    if spec.get("command"):
        del made["spec"]["training"]
    if status is not None:
        made["status"] = status
    return made


def test_the_plain_facts() -> None:
    parsed = parse(body(status={"state": "Running", "attempt": 4, "nextIncarnation": 9}))
    job = parsed.job
    assert (job.namespace, job.name, job.uid, job.generation, parsed.version) == ("team", "tiny", "u-1", 3, "12")
    assert job.created_at.isoformat() == "2026-11-30T12:00:00+00:00"
    assert job.status.attempt == 4 and job.status.next_incarnation == 9
    assert not job.deleting and not job.problems and not job.watchdog and job.spec.checkpoint is None
    assert parse(body({"deletionTimestamp": "2026-11-30T12:01:00Z"})).job.deleting
    assert parse(body({"annotations": {"ciuic.io/take-over-run": "u-0"}})).job.take_over == "u-0"
    assert parse(body({"labels": None, "annotations": None})).job == parse(body()).job


def test_the_path_may_come_by_annotation_and_the_run_has_a_default() -> None:
    by_annotation = parse(body({"annotations": {ANNOTATION: "s3://my-bucket/deepseek-ckpts"}})).job
    assert by_annotation.spec.checkpoint is not None
    assert by_annotation.spec.checkpoint.path == "s3://my-bucket/deepseek-ckpts"
    assert by_annotation.spec.checkpoint.run == "team/tiny"
    by_spec = parse(body(checkpoint={"path": "s3://my-bucket/x", "run": "team/moe"})).job
    assert by_spec.spec.checkpoint is not None and by_spec.spec.checkpoint.run == "team/moe"
    both = parse(body({"annotations": {ANNOTATION: "s3://my-bucket/x"}}, checkpoint={"path": "s3://my-bucket/x"})).job
    assert not both.problems
    joined = parse(body({"annotations": {ANNOTATION: "s3://my-bucket/x"}}, checkpoint={"every": {"steps": 50}})).job
    assert joined.spec.checkpoint is not None and joined.spec.checkpoint.every.steps == 50 and not joined.problems


@pytest.mark.parametrize(
    ("meta", "spec", "words"),
    [
        ({ANNOTATION: "s3://other/x"}, {"checkpoint": {"path": "s3://my-bucket/x"}}, ["s3://other/x", "equal"]),
        ({ANNOTATION: "my-bucket/x"}, {}, ["my-bucket/x", "s3://my-bucket/deepseek-ckpts"]),
        ({ANNOTATION: "s3://b/x\n"}, {}, ["write for example"]),
        ({ANNOTATION: "s3://my-bucket/x"}, {"command": ["python", "x.py"]}, [ANNOTATION, "remove it"]),
    ],
)
def test_annotations_that_cannot_be(meta: dict[str, str], spec: dict[str, Any], words: list[str]) -> None:
    job = parse(body({"annotations": meta}, **spec)).job
    ((reason, sentence),) = job.problems
    assert reason is Reason.INVALID_SPEC and all(word in sentence for word in words)


@pytest.mark.parametrize(
    ("label", "block", "on", "problem"),
    [
        (None, False, False, None),
        (None, True, True, None),
        ("true", False, True, None),
        ("true", True, True, None),
        ("false", False, False, None),
        ("false", True, False, Reason.WATCHDOG_CONTRADICTION),
        ("yes", False, False, Reason.INVALID_SPEC),
        ("yes", True, True, Reason.INVALID_SPEC),
    ],
)
def test_the_watchdog(label: str | None, block: bool, on: bool, problem: Reason | None) -> None:
    spec: dict[str, Any] = {"watchdog": {}} if block else {}
    job = parse(body({"labels": {LABEL: label}} if label else {}, **spec)).job
    assert job.watchdog is on
    assert [reason for reason, _ in job.problems] == ([problem] if problem else [])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"nodes": "many"}, ["spec.nodes", "'many'", "integer", "apply the job again"]),
        ({"accelerator": "abacus"}, ["spec.accelerator", "'abacus'", "nvidia"]),
        ({"future": 1}, ["spec.future", "not known", "remove it"]),
        ({"nodes": None}, ["spec.nodes"]),
        ({"training": {"steps": 10, "model": {"layers": "x"}}}, ["spec.training.model.layers"]),
        ({"nodes": "many", "accelerator": "abacus"}, ["and 1 more"]),
    ],
)
def test_a_spec_that_cannot_be_read_is_said_in_one_sentence(spec: dict[str, Any], words: list[str]) -> None:
    parsed = parse(body(**spec))
    ((reason, sentence),) = parsed.job.problems
    assert reason is Reason.INVALID_SPEC and sentence == parsed.spec_unreadable and "\n" not in sentence
    assert all(word in sentence for word in words), sentence
    assert parsed.job.spec == PLACEHOLDER and not parsed.status_unreadable


def test_a_missing_spec_is_said() -> None:
    made = body()
    del made["spec"]["nodes"]
    assert parse(made).spec_unreadable == "spec.nodes is missing; add it and apply the job again"
    del made["spec"]
    assert parse(made).spec_unreadable


@pytest.mark.parametrize("status", [{"attempt": "four"}, {"fromTheFuture": 1}])
def test_a_status_that_cannot_be_read_is_never_a_fresh_start(status: dict[str, Any]) -> None:
    parsed = parse(body(status=status))
    assert parsed.status_unreadable.startswith("status.") and parsed.job.problems
    assert parsed.job.spec != PLACEHOLDER and isinstance(parsed.job.spec, JobSpec)
