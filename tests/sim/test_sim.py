"""Hundreds of seeded stories around the real planner and the real supervisor. `SIM_SEEDS=20000` tells more of them.

The invariants stand in `truth`: numbers only grow, no pod is made twice, a fault costs at most one restart, nothing
that was committed is lost to step 0, what is restored is whole, one attempt's and on the lineage, one attempt runs,
the job ends.
"""

import os

import pytest
from stories import begin, what_is_wrong

SEEDS = int(os.environ.get("SIM_SEEDS", "500"))


@pytest.mark.parametrize("block", range(10))
def test_stories(block: int) -> None:
    for seed in range(block, SEEDS, 10):
        wrong = what_is_wrong(begin(seed))
        assert wrong is None, wrong


def test_a_story_is_told_the_same_way_twice() -> None:
    first, second = begin(7), begin(7)
    assert what_is_wrong(first) is what_is_wrong(second) is None
    assert first.story == second.story
