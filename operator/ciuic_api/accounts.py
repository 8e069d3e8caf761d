"""What a job's time went into, as `.status` keeps it: the account behind ETTR, and the stages of each recovery.

All in whole milliseconds: a custom resource has no floats.
"""

from typing import Annotated

from pydantic import Field

from .schema import Schema

STAGES = ("detect", "decide", "kill", "pods", "restore", "start", "first_step")
"""Of a recovery, in their order; each begins where the one before it ends."""


class Stages(Schema):
    """Milliseconds of each stage of a recovery, as far as it has come; one too short to be seen is 0."""

    detect: int = 0
    """From the failure until the operator could know of it. What only Kubernetes says of a pod or node happened when it said so."""
    decide: int = 0
    """Until the restart was decided: of ranks that do not move, the time in which their stacks were collected and judged."""
    kill: int | None = None
    """Until no rank of the failed attempt ran in any pod that was left."""
    pods: int | None = None
    """Until every slot had a pod whose agent was ready, the checkpoint was chosen, and the ranks were let go."""
    restore: int | None = None
    """Until every pod had its shards of the checkpoint and launched its ranks."""
    start: int | None = None
    """Until every rank had started, met the others and loaded its shard."""
    first_step: int | None = None
    """Until a step was completed."""


class Mark(Schema):
    """One moment at which a step of the lineage was seen completed."""

    step: int
    at: int
    """Milliseconds since the account began, those in which the job was suspended left out."""
    kept: int
    """Milliseconds until then that went into steps of the lineage."""


class Account(Schema):
    """Where the job's time went since its ranks were let go for the first time. What was rolled back is taken out again."""

    since: str
    """RFC 3339, with milliseconds."""
    suspended: int = 0
    """Milliseconds of all suspensions that are over."""
    suspended_since: str | None = None
    """RFC 3339, with milliseconds; while it is set, the account stands still."""
    attempt: int = 0
    """The attempt that completed the newest step; while it trains, the time between its steps is kept."""
    marks: Annotated[tuple[Mark, ...], Field(min_length=1, max_length=24)]
    """The first two, two for each ten minutes of the last hour, and the newest ones; what lies between is taken from a line."""
