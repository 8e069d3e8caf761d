"""`training.accumulation`: how many micro-steps an optimizer step has, and what that does to the learning rate. Pure.

Read by the trainer before every step, by `kubectl deepseek lr`, and by the CRD.
"""

import enum
import math
from typing import Annotated

from pydantic import ConfigDict, Field

from .schema import Schema, bounded, cel, rules


class AccumulationMode(enum.StrEnum):
    FIXED = "Fixed"
    BY_STEP = "ByStep"


class RateScaling(enum.StrEnum):
    NONE = "None"
    SQUARE_ROOT = "SquareRoot"
    LINEAR = "Linear"


class Stage(Schema):
    """From some step on, another number of micro-steps."""

    from_step: Annotated[
        int, bounded("training.accumulation.stages[].fromStep", 1, 10**9, "before it gradientAccumulation holds")
    ]
    """Completed optimizer steps from which on the stage holds."""
    factor: Annotated[float, bounded("training.accumulation.stages[].factor", 0.001, 1000, "2 doubles it")]
    """Micro-steps are gradientAccumulation times this, rounded down, and at least 1."""


class Accumulation(Schema):
    """How gradientAccumulation changes as the training goes on."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!has(self.stages) || self.stages.map(stage, stage.fromStep).isSorted()",
                "training.accumulation.stages must stand in the order of fromStep; sort them",
            )
        )
    )

    mode: AccumulationMode = AccumulationMode.FIXED
    """`Fixed`: gradientAccumulation at every step. `ByStep`: it is the base that the stages multiply."""
    stages: Annotated[tuple[Stage, ...], Field(max_length=16)] = (
        Stage(from_step=1000, factor=1.5),
        Stage(from_step=5000, factor=2.0),
    )
    """For ByStep."""
    rate_scaling: RateScaling = RateScaling.NONE
    """What is done to the learning rate when a step has f times as many micro-steps as gradientAccumulation says: `Linear`
    multiplies it by f, `SquareRoot` by its root, which suits AdamW."""


def micro_steps(base: int, accumulation: Accumulation, completed: int) -> int:
    """Of the optimizer step that follows `completed` others."""
    factor = 1.0
    if accumulation.mode is AccumulationMode.BY_STEP:
        for stage in accumulation.stages:
            if stage.from_step <= completed:
                factor = stage.factor
    return max(1, int(base * factor))


def rate_factor(base: int, accumulation: Accumulation, count: int) -> float:
    """On the learning rate of a step of `count` micro-steps."""
    match accumulation.rate_scaling:
        case RateScaling.NONE:
            return 1.0
        case RateScaling.SQUARE_ROOT:
            return math.sqrt(count / base)
        case RateScaling.LINEAR:
            return count / base
