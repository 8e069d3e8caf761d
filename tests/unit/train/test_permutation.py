"""The order of samples: every sample once per epoch, the same for every world size, another for every key."""

import itertools

import pytest

from ciuic_trainer.train.permutation import Permutation


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 17, 64, 65, 1000, 4097])
def test_it_is_a_bijection(size: int) -> None:
    assert sorted(map(Permutation(size, key=7), range(size))) == list(range(size))


def test_keys_give_other_orders() -> None:
    orders = {tuple(map(Permutation(100, key), range(100))) for key in range(50)}
    assert len(orders) == 50


def test_it_mixes() -> None:
    """Neighbours come from everywhere: the mean distance of two random places is a third of the size."""
    size = 10_000
    order = list(map(Permutation(size, key=42), range(size)))
    distance = sum(abs(a - b) for a, b in itertools.pairwise(order)) / (size - 1)
    assert distance == pytest.approx(size / 3, rel=0.05)
    assert sum(place == sample for place, sample in enumerate(order)) < 10


def test_the_order_never_changes() -> None:
    """Checkpoints count on it: a resumed job of a later version reads on where it stopped."""
    assert list(map(Permutation(1000, key=42 << 32), range(6))) == [228, 698, 411, 80, 101, 939]


def test_an_index_outside_is_refused() -> None:
    with pytest.raises(IndexError):
        Permutation(10, key=1)(10)
