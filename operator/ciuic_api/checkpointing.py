"""`spec.checkpoint`: where a run's checkpoints lie, how often they are made, which are kept. Part of `job`."""

import enum
from typing import Annotated

from pydantic import ConfigDict, Field

from .schema import Quantity, Schema, bounded, cel, rules


class Resume(enum.StrEnum):
    AUTO = "Auto"
    NEVER = "Never"


class S3(Schema):
    """How to reach the store; what is absent is left to the AWS defaults."""

    endpoint: Annotated[
        str | None,
        Field(
            max_length=1024,
            json_schema_extra=rules(
                cel(
                    "self.startsWith('http://') || self.startsWith('https://')",
                    "checkpoint.s3.endpoint must begin with http:// or https://; write for example http://minio:9000",
                )
            ),
        ),
    ] = None
    """URL of an S3-compatible store; absent: AWS."""
    region: Annotated[str | None, Field(max_length=64)] = None
    """AWS region; absent: what the store answers to by default."""
    path_style: bool = False
    """Put the bucket into the path, as most stores outside AWS want it."""


class Every(Schema):
    """How often a checkpoint goes to S3."""

    steps: Annotated[int, bounded("checkpoint.every.steps", 1, 10**9, "1000 is common")] = 100
    """Optimizer steps from one checkpoint in S3 to the next."""


class MemoryTier(Schema):
    """Checkpoints kept in the pods' memory, from which a job resumes when its pods survive."""

    every_steps: Annotated[int, bounded("checkpoint.memory.everySteps", 1, 10**9, "10 is common")] = 10
    """Optimizer steps from one copy in memory to the next."""
    size_limit: Quantity | None = None
    """Size of the memory-backed volume of one pod; absent: three shards of every rank, computed from the model."""


class Keep(Schema):
    """Which checkpoints stay in S3."""

    last: Annotated[int, bounded("checkpoint.keep.last", 2, 1000, "the newest two are always kept")] = 3
    """Newest checkpoints kept in S3; older ones are deleted."""


class Checkpoint(Schema):
    """Where checkpoints go, how often, and what is kept. Needed with `training`."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!has(self.memory) || !has(self.memory.everySteps) || !has(self.every) || !has(self.every.steps)"
                " || self.memory.everySteps < 1 || self.every.steps % self.memory.everySteps == 0",
                "checkpoint.every.steps must be a multiple of checkpoint.memory.everySteps: uploads start from memory;"
                " change one of the two",
            )
        )
    )

    path: Annotated[
        str | None,
        Field(
            max_length=1024,
            json_schema_extra=rules(
                cel(
                    "self.matches('^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?$')",
                    "checkpoint.path must name a bucket of 3 to 63 lower-case characters;"
                    " write for example s3://my-bucket/deepseek-ckpts",
                )
            ),
        ),
    ] = None
    """`s3://bucket/prefix`. May be given by the annotation ciuic.io/checkpoint-path instead."""
    run: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=256,
            json_schema_extra=rules(
                cel(
                    "self.matches('^[A-Za-z0-9][A-Za-z0-9._/-]*$') && !self.endsWith('/')",
                    "checkpoint.run may hold letters, digits, dots, dashes, underscores and slashes, and must not end"
                    " with a slash; write for example team-a/moe-16b",
                )
            ),
        ),
    ] = None
    """What the checkpoints belong to; outlives the job object. Absent: `<namespace>/<name>`."""
    resume: Resume = Resume.AUTO
    """Never: refused when the run already has checkpoints."""
    secret_name: Annotated[str | None, Field(min_length=1, max_length=253)] = None
    """Secret of this namespace with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN, if any)."""
    s3: S3 = S3()
    every: Every = Every()
    memory: MemoryTier = MemoryTier()
    keep: Keep = Keep()
