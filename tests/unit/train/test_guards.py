"""Which steps are not trusted, and what follows from them."""

import math
import random

import msgspec
import pytest

from ciuic_api.guards import Guards
from ciuic_trainer.train.data import SampleOrder
from ciuic_trainer.train.guards import RECENT_STEPS, GuardState, Verdict, after, bad_rows, judge

CONFIG = Guards(spike_sigma=6, spike_window_steps=8)
USUAL = GuardState(losses=(2.0, 2.2) * 4, norms=(1.0, 1.2) * 4)
"""The loss has mean 2.1 and standard deviation 0.1; the norm's logarithm has 0.091 for both."""
FLAT = GuardState(losses=(2.0,) * 8, norms=(1.0,) * 8)


@pytest.mark.parametrize(
    ("state", "loss", "norm", "verdict"),
    [
        pytest.param(USUAL, 2.69, 1.88, "Good", id="just below six sigma"),
        pytest.param(USUAL, 2.71, 1.0, "LossSpike", id="just above"),
        pytest.param(USUAL, 2.0, 1.90, "GradientSpike", id="the norm as well"),
        pytest.param(USUAL, 0.1, 0.1, "Good", id="low is no spike"),
        pytest.param(FLAT, 2.11, 1.05, "Good", id="where nothing varies, six percent are allowed"),
        pytest.param(FLAT, 2.13, 1.0, "LossSpike", id="and not more"),
        pytest.param(FLAT, 2.0, 1.07, "GradientSpike", id="of either"),
        pytest.param(GuardState(losses=(2.0,) * 8, norms=(0.0,) * 8), 2.0, 1.0, "GradientSpike", id="a norm may be 0"),
        pytest.param(GuardState(losses=(2.0,) * 3, norms=(1.0,) * 3), 9.0, 9.0, "Good", id="too early to know"),
        pytest.param(
            GuardState(losses=(2.0,) * 4, norms=(1.0,) * 4), 9.0, 9.0, "LossSpike", id="half a window is enough"
        ),
        pytest.param(GuardState(), math.nan, 1.0, "LossNotFinite", id="nan is never good"),
        pytest.param(GuardState(), 2.0, math.inf, "GradientNotFinite", id="nor is inf"),
        pytest.param(USUAL, math.inf, math.nan, "LossNotFinite", id="the loss is the cause of its gradient"),
    ],
)
def test_verdict(state: GuardState, loss: float, norm: float, verdict: str) -> None:
    assert judge(CONFIG, state, loss, norm).value == verdict


def test_spikes_can_be_turned_off() -> None:
    assert judge(Guards(spike_sigma=0), USUAL, 100.0, 100.0) is Verdict.GOOD


def test_noise_is_no_spike() -> None:
    """What a healthy run looks like: a falling loss with noise, a norm with the skew that norms have."""
    chance, config, state, bad = random.Random(1), Guards(), GuardState(), 0
    for step in range(1, 5001):
        loss, norm = 2 + 8 / (1 + step / 50) + chance.gauss(0, 0.05), chance.lognormvariate(0, 0.5)
        verdict = judge(config, state, loss, norm)
        bad += verdict is not Verdict.GOOD
        state = after(config, state, step, verdict, loss, norm, ())
    assert bad == 0 and len(state.losses) == 128


def test_what_has_become_usual_is_no_spike_any_more() -> None:
    state, verdicts = USUAL, []
    for step in range(8):
        verdicts.append(judge(CONFIG, state, 4.0, 1.0))
        state = after(CONFIG, state, step, verdicts[-1], 4.0, 1.0, ())
    assert verdicts[0] is Verdict.LOSS_SPIKE and set(verdicts[2:]) == {Verdict.GOOD}


def test_an_overflow_of_fp16_leaves_no_trace() -> None:
    assert after(CONFIG, USUAL, 9, Verdict.OVERFLOW, 2.0, math.inf, ()) == USUAL
    assert not Verdict.OVERFLOW.bad and Verdict.LOSS_SPIKE.bad


def test_what_is_not_finite_is_not_remembered() -> None:
    assert after(CONFIG, USUAL, 9, Verdict.LOSS_NOT_FINITE, math.nan, math.nan, ()).losses == USUAL.losses
    assert after(CONFIG, USUAL, 9, Verdict.GOOD, 3.0, 1.5, ()).losses == (*USUAL.losses[1:], 3.0)


def factors(bad_steps: set[int], last: int) -> dict[int, float]:
    """The factor on the rate after each step at which it changed."""
    state, found = GuardState(), {}
    for step in range(1, last + 1):
        verdict = Verdict.GRADIENT_NOT_FINITE if step in bad_steps else Verdict.GOOD
        before, state = state, after(Guards(spike_sigma=0), state, step, verdict, 2.0, 1.0, ())
        if state.rate_factor != before.rate_factor:
            found[step] = state.rate_factor
    return found


@pytest.mark.parametrize(
    ("bad_steps", "changes"),
    [
        pytest.param({10}, {}, id="one is skipped, no more"),
        pytest.param({10, 10 + RECENT_STEPS}, {138: 0.5, 266: 1.0}, id="the second lowers the rate, which comes back"),
        pytest.param({10, 11 + RECENT_STEPS}, {}, id="long ago is forgotten"),
        pytest.param({10, 20, 30}, {20: 0.5, 30: 0.25, 158: 0.5, 286: 1.0}, id="in two steps up"),
        pytest.param({10, 20, 30, 40, 50}, {20: 0.5, 30: 0.25, 40: 0.125, 178: 0.25, 306: 0.5, 434: 1.0}, id="lowest"),
    ],
)
def test_repeated_bad_steps_lower_the_rate(bad_steps: set[int], changes: dict[int, float]) -> None:
    assert factors(bad_steps, 500) == changes


@pytest.mark.parametrize(
    ("verdicts", "bad_samples", "in_a_row"),
    [
        (["LossNotFinite"] * 3, (), 3),
        (["LossNotFinite", "Good", "GradientNotFinite"], (), 1),
        (["LossSpike"] * 3, (), 0),
        (["LossNotFinite"] * 3, (5,), 0),
    ],
)
def test_only_what_a_restart_may_cure_ends_the_attempt(
    verdicts: list[str], bad_samples: tuple[int, ...], in_a_row: int
) -> None:
    state = GuardState()
    for step, verdict in enumerate(verdicts):
        state = after(CONFIG, state, step, Verdict(verdict), 2.0, 1.0, bad_samples if verdict != "Good" else ())
    assert state.not_finite_in_a_row == in_a_row


def test_bad_samples_are_remembered_and_do_not_lower_the_rate() -> None:
    state = GuardState()
    for step, samples in enumerate(((7, 3), (3, 5), (9,))):
        state = after(CONFIG, state, step, Verdict.LOSS_NOT_FINITE, math.nan, math.nan, samples)
    assert (state.blacklist, state.rate_factor) == ((3, 5, 7, 9), 1.0)


@pytest.mark.parametrize(
    ("finite", "rows"),
    [([1, 1, 0, 1], [2]), ([0, 1], [0]), ([0, 0, 1], []), ([0], []), ([1, 1], [])],
)
def test_most_of_them_bad_is_the_model(finite: list[int], rows: list[int]) -> None:
    assert bad_rows([bool(flag) for flag in finite]) == rows


def test_the_state_survives_the_checkpoint() -> None:
    state = GuardState(losses=(0.1, 1 / 3), norms=(2e-7,), last_bad_step=4, rate_factor=0.25, blacklist=(1, 2))
    assert msgspec.json.decode(msgspec.json.encode(state), type=GuardState) == state


def test_a_blacklisted_sample_never_comes_again() -> None:
    plain = SampleOrder(50, seed=1)
    bad = {plain.sample(place) for place in (3, 4, 20)}
    order = SampleOrder(50, seed=1, blacklist=frozenset(bad))
    for epoch in range(3):
        places = range(50 * epoch, 50 * epoch + 50)
        drawn = [order.sample(place) for place in places]
        assert not bad & {*drawn} and len({*drawn}) == 47
        assert all(order.sample(n) == plain.sample(n) for n in places if plain.sample(n) not in bad), "others stay"


def test_without_any_good_sample_it_still_ends() -> None:
    assert SampleOrder(2, seed=1, blacklist=frozenset({0, 1})).sample(0) in (0, 1)
