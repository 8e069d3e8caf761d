"""The body of a DeepSeekJob as a Job. Pure; used by `jobs`, the only place where bodies come in.

A body that cannot be read still gives a Job, so that the user is told on the job itself what to change. But what it
would say of pods or attempts that already exist is not known then: `unreadable` says so and the job is left alone.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from ciuic_api import names
from ciuic_api.checkpointing import Checkpoint
from ciuic_api.job import JobSpec
from ciuic_api.jobstatus import JobStatus
from ciuic_api.reasons import Reason

from .model import Job

Problem = tuple[Reason, str]
CHECKPOINT_PATH = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?")
"""As the rule of spec.checkpoint.path has it; CEL rules do not see annotations."""
PLACEHOLDER = JobSpec(nodes=1, command=("unreadable",))
"""Stands for a spec that cannot be read; no pod is ever made of it, because the job has a problem."""


@dataclass(frozen=True, kw_only=True)
class Parsed:
    job: Job
    version: str
    """resourceVersion of the body."""
    spec_unreadable: str = ""
    """A sentence, or empty. The job may then be told of it, but nothing of it may be acted on."""
    status_unreadable: str = ""
    """A sentence, or empty. The status must then not even be written: it would begin anew."""


def parse(body: Mapping[str, Any]) -> Parsed:
    meta = body["metadata"]
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    namespace, name = str(meta["namespace"]), str(meta["name"])
    problems: list[Problem] = []
    spec, spec_unreadable = PLACEHOLDER, ""
    try:
        spec = JobSpec.model_validate(body.get("spec"))
    except ValidationError as error:
        spec_unreadable = sentence("spec", error)
        problems.append((Reason.INVALID_SPEC, spec_unreadable))
    status, status_unreadable = JobStatus(), ""
    try:
        status = JobStatus.model_validate(body.get("status") or {})
    except ValidationError as error:
        status_unreadable = sentence("status", error)
        problems.append((Reason.INVALID_SPEC, status_unreadable))
    if not spec_unreadable:
        checkpoint, problem = _checkpoint(spec, annotations, namespace, name)
        spec = spec.model_copy(update={"checkpoint": checkpoint})
        problems += [problem] if problem else []
    watchdog, problem = _watchdog(spec, labels)
    problems += [problem] if problem else []
    job = Job(
        namespace=namespace,
        name=name,
        uid=str(meta["uid"]),
        generation=int(meta.get("generation", 0)),
        created_at=datetime.fromisoformat(meta["creationTimestamp"]),
        spec=spec,
        status=status,
        watchdog=watchdog,
        take_over=annotations.get(names.ANNOTATION_TAKE_OVER, ""),
        deleting="deletionTimestamp" in meta,
        problems=tuple(problems),
    )
    return Parsed(
        job=job,
        version=str(meta["resourceVersion"]),
        spec_unreadable=spec_unreadable,
        status_unreadable=status_unreadable,
    )


def sentence(root: str, error: ValidationError) -> str:
    """The first mistake as one sentence: field, value, what is wrong, what to do."""
    first = error.errors(include_url=False)[0]
    field = ".".join([root, *(str(part) for part in first["loc"])])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    wrong = first["msg"][:1].lower() + first["msg"][1:]
    if first["type"] == "missing":
        return f"{field} is missing{more}; add it and apply the job again"
    if first["type"] == "extra_forbidden":
        remedy = "upgrade the operator to the version of the CRD" if root == "status" else "remove it"
        return f"{field} is not known to this version of the operator{more}; {remedy}"
    value = repr(first["input"])
    value = value if len(value) <= 80 else f"{value[:77]}..."
    remedy = (
        "the operator leaves the job alone until it is" if root == "status" else "change it and apply the job again"
    )
    return f"{field} is {value}: {wrong}{more}; {remedy}"


def _checkpoint(
    spec: JobSpec, annotations: Mapping[str, str], namespace: str, name: str
) -> tuple[Checkpoint | None, Problem | None]:
    """With the annotation's path and the default run filled in."""
    key, given = names.ANNOTATION_CHECKPOINT_PATH, annotations.get(names.ANNOTATION_CHECKPOINT_PATH)
    checkpoint = spec.checkpoint
    problem: str | None = None
    if given is not None:
        if spec.command is not None:
            problem = (
                f"annotation {key} belongs to the built-in trainer; remove it: a command keeps its own checkpoints"
            )
        elif not CHECKPOINT_PATH.fullmatch(given):
            problem = f"annotation {key} is {given!r}; write for example s3://my-bucket/deepseek-ckpts"
        elif checkpoint is not None and checkpoint.path not in (None, given):
            problem = (
                f"annotation {key} is {given!r} but spec.checkpoint.path is {checkpoint.path!r};"
                " make them equal or remove one of the two"
            )
        else:
            checkpoint = (checkpoint or Checkpoint()).model_copy(update={"path": given})
    if problem is not None:
        return checkpoint, (Reason.INVALID_SPEC, problem)
    if checkpoint is not None and checkpoint.run is None:
        checkpoint = checkpoint.model_copy(update={"run": names.default_run(namespace, name)})
    return checkpoint, None


def _watchdog(spec: JobSpec, labels: Mapping[str, str]) -> tuple[bool, Problem | None]:
    """Whether restarts are on. A contradiction leaves them off: of the two the label is the plainer word."""
    label, block = labels.get(names.LABEL_WATCHDOG), spec.watchdog is not None
    if label is None:
        return block, None
    if label not in ("true", "false"):
        problem = f'label {names.LABEL_WATCHDOG} is "{label}"; write "true" or "false"'
        return block, (Reason.INVALID_SPEC, problem)
    if label == "false" and block:
        problem = f'label {names.LABEL_WATCHDOG} is "false" beside a spec.watchdog block; remove one of the two'
        return False, (Reason.WATCHDOG_CONTRADICTION, problem)
    return label == "true", None
