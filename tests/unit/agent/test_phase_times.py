"""What agents tell of how long ranks stay in one place."""

import pytest

from ciuic_trainer.agent.phase_times import PhaseTimes, percentile
from ciuic_trainer.shared.progress import Phase, Progress


def seen(step: int, at: float, phase: Phase = Phase.STEP) -> Progress:
    return Progress(attempt=1, phase=phase, step=step, moved_at_seconds=at)


def told(*looks: Progress | None) -> dict[str, tuple[int, float]]:
    times = PhaseTimes()
    for look in looks:
        times.look({0: look})
    return {time.phase: (time.count, time.p99_seconds) for time in times.told()}


def test_each_movement_counts_for_the_phase_it_ends() -> None:
    steps = [seen(1, 10.0), seen(2, 11.0), seen(2, 11.25, Phase.EVAL), seen(2, 16.0), seen(3, 18.0)]
    assert told(None, *steps) == {"step": (3, 2.0), "eval": (1, 4.75)}


def test_a_rank_that_does_not_move_adds_nothing() -> None:
    still = seen(4, 10.0)
    assert told(still, still, still) == {}


def test_ranks_are_followed_each_for_itself() -> None:
    times = PhaseTimes()
    times.look({0: seen(1, 10.0), 1: seen(1, 50.0)})
    times.look({0: seen(2, 11.0), 1: seen(2, 53.0)})
    assert [(time.phase, time.count, time.p99_seconds) for time in times.told()] == [("step", 2, 3.0)]


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 2), (99, 99), (100, 99), (101, 100), (200, 198)])
def test_percentile(count: int, expected: int) -> None:
    assert percentile(range(1, count + 1), 0.99) == expected
