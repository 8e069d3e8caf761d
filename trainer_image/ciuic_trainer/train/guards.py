"""What to do about steps that would harm the model. Pure; the state is kept in the checkpoint. Used by watch.py.

    a bad step            skipped by all ranks
    of bad samples        they are not used again
    of anything else      a second one within RECENT_STEPS halves the learning rate, which doubles again after as many good ones
    a third one in a row  ends the attempt when none was finite, as do weights that are not: the job goes on from a checkpoint

A step is of bad samples when the losses of a few of its micro-batches are not finite and those of the others are.
"""

import enum
import math
import statistics
import sys
from collections.abc import Collection, Sequence

import msgspec

from ciuic_api.guards import Guards

RECENT_STEPS = 128
SKIPS_ALLOWED = 2
"""In a row, of steps that were not finite and not of bad samples."""
LOWER, LOWEST = 0.5, 0.125
LEAST_SIGMA = 0.01
"""As a part of the mean: where values hardly differ, six standard deviations are nothing."""
BLACKLIST_LIMIT = 1024
"""Samples; with more of them the data is broken, and a person should look at it."""


class Verdict(enum.StrEnum):
    GOOD = "Good"
    LOSS_NOT_FINITE = "LossNotFinite"
    GRADIENT_NOT_FINITE = "GradientNotFinite"
    LOSS_SPIKE = "LossSpike"
    GRADIENT_SPIKE = "GradientSpike"
    OVERFLOW = "Overflow"
    """Of fp16 under a loss scale that was too high. Skipped, and the scale lowered: how the scale finds its way."""

    @property
    def finite(self) -> bool:
        return self not in (Verdict.LOSS_NOT_FINITE, Verdict.GRADIENT_NOT_FINITE)

    @property
    def bad(self) -> bool:
        return self not in (Verdict.GOOD, Verdict.OVERFLOW)


class GuardState(msgspec.Struct, frozen=True, kw_only=True):
    losses: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()
    """Both of the last steps that were finite. Spikes are among them: what has become usual is no spike any more."""
    not_finite_in_a_row: int = 0
    """Steps whose cause was not in their samples."""
    last_bad_step: int | None = None
    """A spike, or one of those above."""
    rate_factor: float = 1.0
    rate_changed_at: int = 0
    blacklist: tuple[int, ...] = ()
    """Samples, sorted."""


def judge(config: Guards, state: GuardState, loss: float, norm: float) -> Verdict:
    """Of a step whose gradient is complete and not applied yet."""
    if not math.isfinite(loss):
        return Verdict.LOSS_NOT_FINITE
    if not math.isfinite(norm):
        return Verdict.GRADIENT_NOT_FINITE
    if config.spike_sigma and len(state.losses) >= config.spike_window_steps // 2:
        if loss > _limit(config.spike_sigma, state.losses):
            return Verdict.LOSS_SPIKE
        if norm > _log_limit(config.spike_sigma, state.norms):
            return Verdict.GRADIENT_SPIKE
    return Verdict.GOOD


def after(
    config: Guards,
    state: GuardState,
    step: int,
    verdict: Verdict,
    loss: float,
    norm: float,
    bad_samples: Collection[int],
) -> GuardState:
    """`step` is done or skipped."""
    if verdict is Verdict.OVERFLOW:
        return state
    changes: dict[str, object] = {}
    if not bad_samples:
        changes["not_finite_in_a_row"] = 0 if verdict.finite else state.not_finite_in_a_row + 1
    if verdict.finite:
        changes["losses"] = (*state.losses, loss)[-config.spike_window_steps :]
        changes["norms"] = (*state.norms, norm)[-config.spike_window_steps :]
    if bad_samples:
        changes["blacklist"] = tuple(sorted({*state.blacklist, *bad_samples}))
    elif verdict.bad:
        repeated = state.last_bad_step is not None and step - state.last_bad_step <= RECENT_STEPS
        changes["last_bad_step"] = step
        if repeated and state.rate_factor > LOWEST:
            changes |= {"rate_factor": state.rate_factor * LOWER, "rate_changed_at": step}
    elif state.rate_factor < 1.0 and step - max(state.last_bad_step or 0, state.rate_changed_at) >= RECENT_STEPS:
        changes |= {"rate_factor": state.rate_factor / LOWER, "rate_changed_at": step}
    return msgspec.structs.replace(state, **changes)


def bad_rows(finite: Collection[bool]) -> list[int]:
    """Which micro-batches of a step are themselves to blame, by whether the loss of each is finite. None when most of them
    are not: then it is the model."""
    rows = [number for number, is_finite in enumerate(finite) if not is_finite]
    return rows if 2 * len(rows) <= len(finite) else []


def _limit(sigma: float, values: Sequence[float]) -> float:
    mean = statistics.fmean(values)
    return mean + sigma * max(statistics.pstdev(values, mean), LEAST_SIGMA * abs(mean))


def _log_limit(sigma: float, values: Sequence[float]) -> float:
    """Of norms, whose logarithms are spread evenly: counted on the norms themselves, healthy runs have spikes."""
    logarithms = [math.log(max(value, sys.float_info.min)) for value in values]
    mean = statistics.fmean(logarithms)
    return math.exp(mean + sigma * max(statistics.pstdev(logarithms, mean), LEAST_SIGMA))
