"""`DeepSeekJob.status`: what the operator persists. Together with pods, agents' reports and S3 it is all the state there is."""

import enum
from typing import Annotated

from pydantic import Field

from .accounts import Account, Stages
from .schema import Schema


class State(enum.StrEnum):
    PENDING = "Pending"
    """Pods are being created, scheduled, pulled, or checked."""
    STARTING = "Starting"
    """The first attempt's ranks start."""
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


TERMINAL = frozenset({State.COMPLETE, State.FAILED})


class CheckpointRef(Schema):
    step: int
    attempt: int


class CheckpointSeen(Schema):
    step: int
    attempt: int
    tier: str
    """memory or s3."""
    at: str
    """RFC 3339."""


class LineageLink(Schema):
    attempt: int
    parent: int | None = None
    restored: CheckpointRef | None = None


class Quarantined(Schema):
    step: int
    attempt: int
    why: Annotated[str, Field(max_length=512)]


class RestartCounts(Schema):
    total: int = 0
    software: int = 0
    disruption: int = 0


class Failure(Schema):
    """The newest failure, as a person wants it told."""

    reason: str
    message: Annotated[str, Field(max_length=2048)]
    slot: int | None = None
    rank: int | None = None
    node: str | None = None
    at: str
    """When it was seen."""
    attempt: int = 0
    """The attempt that failed."""
    evidence: Annotated[str | None, Field(max_length=1280)] = None
    """Where stacks, progress and last lines of the ranks are kept, as JSON, one file per slot."""
    detected_seconds: int | None = None
    """From the failure to seeing it."""
    recovered_seconds: int | None = None
    """From seeing it to the next completed step."""


class LedgerEntry(Schema):
    """One failure: for budgets and crash loops, and with what it cost."""

    at: str
    """When it was seen."""
    reason: str
    fingerprint: str
    counted: bool
    """False for disruptions, which are free."""
    step: int
    """Highest completed step of the job when it failed."""
    slot: int | None = None
    rank: int | None = None
    node: str | None = None
    attempt: int = 0
    """The attempt that failed."""
    failed_at: str | None = None
    """When it happened, as far as an agent could say: RFC 3339, with milliseconds."""
    restored: CheckpointRef | None = None
    """What was restored; absent with a tier that is none: step 0."""
    tier: str | None = None
    """memory, s3, or none; absent until ranks were let go again."""
    lost_steps: int | None = None
    """Steps that were completed and had to be done again; absent until ranks were let go again."""
    stages: Stages | None = None
    """What the recovery took, stage by stage, in milliseconds."""
    recovered: bool = False
    """A step was completed again. Stays false where the next failure, or a suspension, cut the recovery short."""


class Budget(Schema):
    """Counted restarts since `since`; begun anew when watchdog.restarts.windowSeconds are over."""

    since: str
    used: int


class Pace(Schema):
    """How long ranks stay in one place in a phase: 99 of 100 movements were quicker."""

    phase: str
    p99_milliseconds: int


class Condition(Schema):
    type: str
    status: str
    reason: str
    message: Annotated[str, Field(max_length=2048)] = ""
    last_transition_time: str
    observed_generation: int = 0


class JobStatus(Schema):
    observed_generation: int = 0
    state: State = State.PENDING
    state_since: str | None = None
    """When `state` last changed."""
    reason: str = ""
    message: Annotated[str, Field(max_length=2048)] = ""
    attempt: int = 0
    """Life of the whole process group that is directed now; only grows within the run."""
    released: bool = False
    """The agents of `attempt` have been told to run. Persisted before they are told."""
    parent: int | None = None
    """The attempt whose checkpoints this one continues."""
    restored: CheckpointRef | None = None
    """What `attempt` started from; absent: step 0."""
    lineage: Annotated[tuple[LineageLink, ...], Field(max_length=16)] = ()
    """Newest links of the chain of attempts that were released; older ones are in S3."""
    quarantined: Annotated[tuple[Quarantined, ...], Field(max_length=8)] = ()
    """Checkpoints in S3 that failed their checksum and are not used again."""
    next_incarnation: int = 0
    """Number of the next pod. Persisted before the pod is created."""
    step: int = 0
    total_steps: int | None = None
    highest_step: int = 0
    """Highest completed step on the lineage."""
    loss: str | None = None
    eval_loss: str | None = None
    tokens_per_second: int | None = None
    eta_seconds: int | None = None
    ready: str = ""
    """Pods whose agent is connected, of all: `7/8`."""
    restarts: RestartCounts = RestartCounts()
    last_checkpoint: CheckpointSeen | None = None
    """Newest checkpoint that every slot holds in memory, or that is in S3."""
    last_committed: CheckpointSeen | None = None
    """Newest S3 manifest ever seen. While it is set, the job never starts at step 0."""
    last_failure: Failure | None = None
    ledger: Annotated[tuple[LedgerEntry, ...], Field(max_length=8)] = ()
    """The newest failures, oldest first; `kubectl deepseek history` shows them."""
    account: Account | None = None
    """What ETTR is reckoned from. Of the built-in trainer only: the steps of a script are not known."""
    ettr: str | None = None
    """Share of the time since ranks were first let go, suspensions left out, that went into steps the model has: `0.973`."""
    ettr_last_hour: str | None = None
    """The same of the last hour."""
    lost_steps: int = 0
    """Steps that were completed and had to be done again, all restarts together."""
    budget: Budget | None = None
    paces: Annotated[tuple[Pace, ...], Field(max_length=8)] = ()
    """What deadlines are computed from."""
    paces_of: str = ""
    """Digest of what the paces belong to: another model, world or image has others."""
    evidence_number: int = 0
    """Of the newest evidence that agents were asked for."""
    evidence_since: str | None = None
    """Since when agents are asked for it, because no rank moves."""
    pod_template_hash: str | None = None
    """Of podTemplate and image when the attempt's pods were first created."""
    started_at: str | None = None
    finished_at: str | None = None
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = ()
