"""Which checkpoints count: chains of attempts, forks, fresh starts."""

from builders import Attempt, checkpoint
from ciuic_api.lineage import CheckpointId, counts, fork_steps, on_lineage

CHAIN = (
    Attempt(attempt=1),
    Attempt(attempt=2, parent=1, restored=checkpoint(15, 1)),
    Attempt(attempt=3, parent=2, restored=checkpoint(10, 1)),
    Attempt(attempt=5, parent=3, restored=checkpoint(12, 3)),
)


def test_limits_shrink_towards_the_past() -> None:
    assert fork_steps(5, CHAIN) == {5: None, 3: 12, 2: 10, 1: 10}


def test_beyond_the_fork_is_a_dead_branch() -> None:
    assert counts(checkpoint(10, 1), 5, CHAIN)
    assert not counts(checkpoint(15, 1), 5, CHAIN), "attempt 3 went back to 10"
    assert not counts(checkpoint(11, 2), 5, CHAIN)
    assert not counts(checkpoint(4, 4), 5, CHAIN), "an attempt that is not on the chain"


def test_a_fresh_start_ends_the_chain() -> None:
    attempts = (Attempt(attempt=1), Attempt(attempt=2, parent=1, restored=None))
    assert not counts(checkpoint(3, 1), 2, attempts)


def test_an_unknown_parent_ends_the_chain() -> None:
    assert fork_steps(3, (Attempt(attempt=3, parent=2, restored=CheckpointId(5, 2)),)) == {3: None, 2: 5}


def test_newest_first() -> None:
    found = [checkpoint(8, 1), checkpoint(12, 3), checkpoint(16, 1), checkpoint(10, 1)]
    assert on_lineage(found, 5, CHAIN) == [checkpoint(12, 3), checkpoint(10, 1), checkpoint(8, 1)]
