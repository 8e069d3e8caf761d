"""The learning rate at the places where it could be wrong: curves, warm-ups, groups, and the controller."""

import math
from typing import Any

import pytest

from ciuic_api.learning_rate import Adaptive, Band, LearningRate, bands, learning_rate, warmup_steps
from ciuic_trainer.train.annealing import Annealing, observe

STEPS = 110


def config(**fields: Any) -> LearningRate:
    return LearningRate.model_validate({"peak": 1.0, "warmupSteps": 10, "minRatio": 0.1, **fields})


@pytest.mark.parametrize(
    ("curve", "step", "rate"),
    [
        pytest.param("Cosine", 1, 0.1, id="the first step already moves"),
        pytest.param("Cosine", 10, 1.0, id="the peak ends the warm-up"),
        pytest.param("Cosine", 35, (1 + math.cos(math.pi / 4)) / 2, id="cosine, a quarter"),
        pytest.param("Cosine", 60, 0.5, id="cosine, half way between peak and end"),
        pytest.param("Cosine", 100, 0.1, id="cosine, already at its lowest"),
        pytest.param("Cosine", 110, 0.1, id="cosine, the last step"),
        pytest.param("Annealing", 5, 0.5, id="annealing warms up alike"),
        pytest.param("Annealing", 60, math.cos(math.pi / 4), id="annealing, half way"),
        pytest.param("Annealing", 110, 0.1, id="annealing, the last step"),
        pytest.param("Published", 5, 0.1, id="as published, before it begins"),
        pytest.param("Published", 60, math.cos(math.pi / 4), id="as published, half way"),
        pytest.param("Published", 109, math.cos(math.pi * 0.01 / 2), id="as published, it rises"),
        pytest.param("Published", 110, 1.0, id="as published, the peak ends it"),
    ],
)
def test_rate(curve: str, step: int, rate: float) -> None:
    assert learning_rate(config(curve=curve), step, STEPS, warmup=10) == pytest.approx(rate)


@pytest.mark.parametrize("curve", ["Cosine", "Annealing"])
def test_it_rises_then_falls(curve: str) -> None:
    rates = [learning_rate(config(curve=curve), step, STEPS, warmup=10) for step in range(1, 111)]
    assert rates[:10] == sorted(rates[:10]) and rates[9:] == sorted(rates[9:], reverse=True)


def test_without_warmup() -> None:
    assert learning_rate(config(minRatio=0), 1, steps=1, warmup=0) == pytest.approx(0.0)
    assert learning_rate(config(minRatio=0), 1, steps=1000, warmup=0) == pytest.approx(1.0, abs=1e-4)


def test_a_warmup_longer_than_the_training() -> None:
    assert learning_rate(config(), 50, steps=50, warmup=100) == pytest.approx(0.5)


def test_layers_warm_up_one_after_the_other() -> None:
    """w_i = i * total / layers, and the curve of each begins at its own w_i."""
    chosen = config(warmup="LayerWise", warmupSteps=40)
    assert bands(chosen, 4) == (Band(1, 1), Band(2, 2), Band(3, 3), Band(4, 4))
    warmups = [warmup_steps(chosen, band, 4) for band in bands(chosen, 4)]
    assert warmups == [10, 20, 30, 40]
    assert [learning_rate(chosen, 10, STEPS, warmup) for warmup in warmups] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    later = [learning_rate(chosen, 60, STEPS, warmup) for warmup in warmups]
    assert later[0] == pytest.approx(0.5) and later == sorted(later) and len({*later}) == 4
    assert {learning_rate(chosen, STEPS, STEPS, warmup) for warmup in warmups} == {0.1}


def test_a_uniform_warmup_has_one_band() -> None:
    assert bands(config(), 61) == (Band(1, 61),)
    assert warmup_steps(config(), Band(1, 61), 61) == 10


@pytest.mark.parametrize("layers", [1, 3, 16, 17, 61, 512])
def test_bands_hold_every_layer_once_and_make_32_groups_at_most(layers: int) -> None:
    found = bands(config(warmup="LayerWise"), layers)
    assert [layer for band in found for layer in range(band.first, band.last + 1)] == list(range(1, layers + 1))
    assert 2 * len(found) <= 32
    sizes = {band.last - band.first + 1 for band in found}
    assert max(sizes) - min(sizes) <= 1
    assert warmup_steps(config(warmup="LayerWise"), found[-1], layers) == 10


ADAPTIVE = Adaptive(window_steps=2, min_improvement=0.1, factor=0.5, floor=0.2)


@pytest.mark.parametrize(
    ("windows", "factor"),
    [
        pytest.param([4.0], 1.0, id="nothing to compare with"),
        pytest.param([4.0, 3.9], 1.0, id="one flat window may be chance"),
        pytest.param([4.0, 3.9, 3.8], 0.5, id="two in a row are not"),
        pytest.param([4.0, 3.9, 3.0, 2.9], 1.0, id="not in a row"),
        pytest.param([4.0, 3.0, 2.5, 2.0], 1.0, id="it falls"),
        pytest.param([4.0, 3.6], 1.0, id="exactly enough"),
        pytest.param([4.0, 4.1, 4.2, 4.3], 0.5, id="rising is not falling, and the count begins anew"),
        pytest.param([4.0, 4.0, 4.0, 4.0, 4.0], 0.25, id="twice"),
        pytest.param([4.0] * 20, 0.2, id="not below the floor"),
    ],
)
def test_annealing(windows: list[float], factor: float) -> None:
    state = Annealing()
    for mean in windows:
        for loss in (mean - 0.01, mean + 0.01):
            state = observe(ADAPTIVE, state, loss)
    assert state.factor == pytest.approx(factor)


def test_annealing_decides_at_the_end_of_a_window_only() -> None:
    state = Annealing()
    for _ in range(5):
        state = observe(ADAPTIVE, state, 4.0)
    assert state.factor == 1.0
    assert observe(ADAPTIVE, state, 4.0).factor == 0.5


def test_without_the_setting_nothing_is_remembered() -> None:
    assert observe(None, Annealing(), 4.0) == Annealing()
