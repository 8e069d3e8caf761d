"""How many micro-steps a step has, and what they do to the learning rate."""

from typing import Any

import pytest

from ciuic_api.accumulation import Accumulation, micro_steps, rate_factor
from ciuic_api.learning_rate import learning_rate
from ciuic_api.training import Training
from ciuic_cli.curves import plan


def accumulation(**fields: Any) -> Accumulation:
    return Accumulation.model_validate({"mode": "ByStep", **fields})


@pytest.mark.parametrize(
    ("base", "completed", "count"),
    [
        pytest.param(8, 0, 8, id="the first step"),
        pytest.param(8, 999, 8, id="the last one below 1000"),
        pytest.param(8, 1000, 12, id="x 1.5"),
        pytest.param(8, 4999, 12, id="the last one below 5000"),
        pytest.param(8, 5000, 16, id="x 2"),
        pytest.param(3, 1000, 4, id="rounded down"),
        pytest.param(1, 1000, 1, id="a base of one grows only when it doubles"),
    ],
)
def test_by_step_with_its_defaults(base: int, completed: int, count: int) -> None:
    assert micro_steps(base, accumulation(), completed) == count


def test_fixed_looks_at_no_stage() -> None:
    assert micro_steps(8, Accumulation(), 10**6) == 8


def test_stages_of_ones_own() -> None:
    chosen = accumulation(stages=[{"fromStep": 2, "factor": 0.1}, {"fromStep": 4, "factor": 3}])
    assert [micro_steps(4, chosen, completed) for completed in range(6)] == [4, 4, 1, 1, 12, 12]


@pytest.mark.parametrize(("scaling", "factor"), [("None", 1.0), ("SquareRoot", 2.0), ("Linear", 4.0)])
def test_the_rate_follows(scaling: str, factor: float) -> None:
    assert rate_factor(8, accumulation(rateScaling=scaling), 32) == factor
    assert rate_factor(8, accumulation(rateScaling=scaling), 8) == 1.0


def test_what_is_drawn_before_is_what_the_trainer_will_do() -> None:
    fields = {"mode": "ByStep", "stages": [{"fromStep": 50, "factor": 4}], "rateScaling": "SquareRoot"}
    training = Training.model_validate({"steps": 100, "gradientAccumulation": 2, "accumulation": fields})
    found = plan(training, points=100)
    for step, factor in ((50, 1), (51, 2)):
        assert found.at(step)[0] == learning_rate(training.learning_rate, step, 100, 10) * factor
