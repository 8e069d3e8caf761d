"""`training.learningRate`: its fields, and the rate as a pure function of the step and of the layers a parameter is in.

Read by the trainer, which writes the rate into the optimizer before every step, by `kubectl deepseek lr`, which draws it
before anything runs, and by the CRD.
"""

import enum
import itertools
import math
from typing import Annotated, NamedTuple

from .schema import Schema, bounded

MAX_BANDS = 16
"""With and without weight decay that makes 32 parameter groups: an optimizer step takes twice as long with 60."""


class Curve(enum.StrEnum):
    COSINE = "Cosine"
    ANNEALING = "Annealing"
    PUBLISHED = "Published"


class Warmup(enum.StrEnum):
    UNIFORM = "Uniform"
    LAYER_WISE = "LayerWise"


class Adaptive(Schema):
    """Anneals faster where the loss has stopped falling: every window of two in a row whose mean loss improved by less
    than minImprovement multiplies all later rates by factor. Steps that were skipped are not looked at."""

    window_steps: Annotated[
        int, bounded("training.learningRate.adaptive.windowSteps", 2, 10**9, "100 averages the noise away")
    ] = 100
    """Optimizer steps whose mean loss is compared with that of the steps before."""
    min_improvement: Annotated[
        float,
        bounded("training.learningRate.adaptive.minImprovement", 0, 1, "0.002 is 0.2 percent"),
    ] = 0.002
    """Part of the mean loss by which it must fall from one window to the next to count as falling."""
    factor: Annotated[
        float,
        bounded("training.learningRate.adaptive.factor", 0.01, 1, "0.9 takes a tenth away"),
    ] = 0.9
    """What the rate is multiplied by each time."""
    floor: Annotated[float, bounded("training.learningRate.adaptive.floor", 0, 1, "0.1 is common")] = 0.1
    """The product of all factors never falls below it."""


class LearningRate(Schema):
    """Linear warm-up to the peak, then a curve that ends with the last step, and never less than `peak * minRatio` after
    the warm-up."""

    peak: Annotated[float, bounded("training.learningRate.peak", 0, 10, "6e-3 suits the tiny model")] = 6e-3
    """Learning rate at the end of the warm-up."""
    warmup_steps: Annotated[int, bounded("training.learningRate.warmupSteps", 0, 10**9, "1000 is common")] = 10
    """Optimizer steps of the warm-up."""
    warmup: Warmup = Warmup.UNIFORM
    """`Uniform`: warmupSteps for all. `LayerWise`: warmupSteps * i / layers for layer i of the model, counted from 1 at the
    embedding, so that early layers are at the peak first; the curve of a layer begins where its own warm-up ends."""
    curve: Curve = Curve.COSINE
    """With p from 0 at the end of the warm-up to 1 at the last step, and as parts of peak: `Cosine` (1 + cos(pi p)) / 2;
    `Annealing` cos(pi p / 2), which stays high for longer; `Published` cos(pi (1 - p) / 2), the formula as it is often
    printed, which rises from minRatio after the warm-up steps to the peak at the last step, and has no warm-up."""
    min_ratio: Annotated[float, bounded("training.learningRate.minRatio", 0, 1, "0.1 is common")] = 0.1
    """Lowest rate of the curve, as a part of peak."""
    adaptive: Adaptive | None = None


class Band(NamedTuple):
    """Neighbouring decoder layers, counted from 1, that share their rate."""

    first: int
    last: int


def bands(config: LearningRate, layers: int) -> tuple[Band, ...]:
    """All layers together, or for a layer-wise warm-up as many bands of nearly equal size as there may be."""
    count = min(layers, MAX_BANDS) if config.warmup is Warmup.LAYER_WISE else 1
    ends = [layers * number // count for number in range(count + 1)]
    return tuple(Band(low + 1, high) for low, high in itertools.pairwise(ends))


def warmup_steps(config: LearningRate, band: Band, layers: int) -> float:
    """Of the band's last layer: `i * total / layers`."""
    return config.warmup_steps * band.last / layers


def learning_rate(config: LearningRate, step: int, steps: int, warmup: float) -> float:
    """Rate of optimizer step `step`, 1 to `steps`, for parameters that warm up for `warmup` steps."""
    if step <= warmup and config.curve is not Curve.PUBLISHED:
        return config.peak * step / warmup
    progress = min(1.0, max(0.0, step - warmup) / max(1.0, steps - warmup))
    match config.curve:
        case Curve.COSINE:
            part = (1 + math.cos(math.pi * progress)) / 2
        case Curve.ANNEALING:
            part = math.cos(math.pi / 2 * progress)
        case Curve.PUBLISHED:
            part = math.cos(math.pi * (1 - progress) / 2)
    return config.peak * max(config.min_ratio, part)
