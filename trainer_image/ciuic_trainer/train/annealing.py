"""The controller behind `training.learningRate.adaptive`: how much less than planned the rate is, by how the loss falls.

Pure. The loop feeds it the mean loss of every step that was applied, which is the same on all ranks, and keeps its state
in the checkpoint, so a resumed run takes the same decisions at the same steps.
"""

import msgspec

from ciuic_api.learning_rate import Adaptive

FLAT_WINDOWS = 2
"""In a row; one alone may be chance."""


class Annealing(msgspec.Struct, frozen=True, kw_only=True):
    factor: float = 1.0
    """On all later rates."""
    loss_sum: float = 0.0
    """Of the window that is being filled."""
    loss_count: int = 0
    previous_mean: float | None = None
    """Of the window before."""
    flat_windows: int = 0
    """In a row, until now."""


def observe(config: Adaptive | None, state: Annealing, loss: float) -> Annealing:
    """After one applied step."""
    if config is None:
        return state
    state = msgspec.structs.replace(state, loss_sum=state.loss_sum + loss, loss_count=state.loss_count + 1)
    if state.loss_count < config.window_steps:
        return state
    mean = state.loss_sum / state.loss_count
    falls = state.previous_mean is None or state.previous_mean - mean >= config.min_improvement * state.previous_mean
    flat_windows = 0 if falls else state.flat_windows + 1
    factor = state.factor
    if flat_windows == FLAT_WINDOWS:
        flat_windows, factor = 0, min(factor, max(config.floor, factor * config.factor))
    return Annealing(factor=factor, previous_mean=mean, flat_windows=flat_windows)
