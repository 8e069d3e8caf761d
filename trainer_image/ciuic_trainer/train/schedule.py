"""The learning rate as a pure function of the step. The loop writes it into the optimizer before every step.

So nothing of it needs saving, and a resumed run cannot differ from an uninterrupted one.
"""

import math

from ciuic_api.training import LearningRate


def learning_rate(config: LearningRate, step: int, steps: int) -> float:
    """Rate of optimizer step `step`, 1 to `steps`: linear warm-up to the peak, then cosine to peak * min_ratio."""
    if step <= config.warmup_steps:
        return config.peak * step / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    cosine = (1 + math.cos(math.pi * min(1.0, progress))) / 2
    return config.peak * (config.min_ratio + (1 - config.min_ratio) * cosine)
