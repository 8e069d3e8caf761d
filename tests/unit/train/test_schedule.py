"""The learning rate at the places where it could be wrong."""

import pytest

from ciuic_api.training import LearningRate
from ciuic_trainer.train.schedule import learning_rate

CONFIG = LearningRate(peak=1.0, warmup_steps=10, min_ratio=0.1)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        pytest.param(1, 0.1, id="the first step already moves"),
        pytest.param(10, 1.0, id="the peak ends the warm-up"),
        pytest.param(60, 0.55, id="half way between peak and end"),
        pytest.param(110, 0.1, id="the last step"),
    ],
)
def test_rate(step: int, rate: float) -> None:
    assert learning_rate(CONFIG, step, steps=110) == pytest.approx(rate)


def test_it_rises_then_falls() -> None:
    rates = [learning_rate(CONFIG, step, steps=110) for step in range(1, 111)]
    assert rates[:10] == sorted(rates[:10]) and rates[9:] == sorted(rates[9:], reverse=True)


def test_without_warmup() -> None:
    config = LearningRate(peak=1.0, warmup_steps=0, min_ratio=0.0)
    assert learning_rate(config, 1, steps=1) == pytest.approx(0.0)
    assert learning_rate(config, 1, steps=1000) == pytest.approx(1.0, abs=1e-4)


def test_a_warmup_longer_than_the_training() -> None:
    config = LearningRate(peak=1.0, warmup_steps=100, min_ratio=0.1)
    assert learning_rate(config, 50, steps=50) == pytest.approx(0.5)
