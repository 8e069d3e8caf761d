"""The learning rates that a job's file plans, as series to draw. Used by `kubectl deepseek lr`. Pure."""

from dataclasses import dataclass

from ciuic_api.accumulation import micro_steps, rate_factor
from ciuic_api.learning_rate import Band, bands, learning_rate, warmup_steps
from ciuic_api.training import Training

MAX_BANDS_SHOWN = 3


@dataclass(frozen=True)
class Series:
    label: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Plan:
    title: str
    steps: tuple[int, ...]
    """Where the series have their values."""
    series: tuple[Series, ...]
    landmarks: tuple[tuple[str, int], ...]
    """Steps that people ask about."""

    def at(self, step: int) -> tuple[float, ...]:
        return tuple(series.values[self.steps.index(step)] for series in self.series)


def plan(training: Training, points: int) -> Plan:
    """At `points` steps spread evenly over the training, and at the landmarks."""
    config, last = training.learning_rate, training.steps
    named = (
        ("first step", 1),
        ("end of the warm-up", config.warmup_steps),
        ("half of the rest", (last + config.warmup_steps) // 2),
        ("last step", last),
    )
    landmarks = tuple((name, step) for name, step in named if 1 <= step <= last)
    even = {1 + round(number * (last - 1) / max(1, points - 1)) for number in range(points)}
    steps = sorted(even | {step for _, step in landmarks})
    series = [_series(training, band, steps) for band in _shown(bands(config, training.model.layers))]
    if config.adaptive is not None:
        floor, (lowest, *_) = config.adaptive.floor, series
        values = tuple(value * floor for value in lowest.values)
        series.append(Series(f"{lowest.label}, lowest that a flat loss makes of it", values))
    return Plan(
        title=f"{config.curve} over {last:,} steps, peak {config.peak:g}",
        steps=tuple(steps),
        series=tuple(series),
        landmarks=landmarks,
    )


def _series(training: Training, band: Band, steps: list[int]) -> Series:
    warmup = warmup_steps(training.learning_rate, band, training.model.layers)
    base, accumulation = training.gradient_accumulation, training.accumulation
    values = tuple(
        learning_rate(training.learning_rate, step, training.steps, warmup)
        * rate_factor(base, accumulation, micro_steps(base, accumulation, step - 1))
        for step in steps
    )
    if band == Band(1, training.model.layers):
        return Series("all layers", values)
    return Series(f"layer {band.last}" if band.first == band.last else f"layers {band.first} to {band.last}", values)


def _shown(found: tuple[Band, ...]) -> tuple[Band, ...]:
    """The first, the middle one and the last."""
    return found if len(found) <= MAX_BANDS_SHOWN else (found[0], found[len(found) // 2], found[-1])
