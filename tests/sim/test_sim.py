"""Hundreds of seeded stories around the real planner and the real supervisor. `SIM_SEEDS=20000` tells more of them.

The invariants stand in `cluster`: numbers only grow, no pod is made twice, a fault costs at most one restart, nothing
that was committed is lost to step 0, what is restored is whole and one attempt's, one attempt runs, the job ends.
"""

import os

import pytest
from cluster import Cluster, Violation, make_spec
from faults import FAULTS

from ciuic_api.jobstatus import State
from ciuic_api.reasons import Reason

SEEDS = int(os.environ.get("SIM_SEEDS", "500"))
LIMIT_SECONDS = 900.0


def tell(seed: int) -> Cluster:
    """One story: a job of two to four pods and up to five faults in its first minute."""
    cluster = Cluster(seed=seed, spec=make_spec(nodes=2 + seed % 3, steps=60))
    for _ in range(cluster.random.randint(0, 5)):
        fault = cluster.random.choice(FAULTS)

        def strike(fault=fault) -> None:  # type: ignore[no-untyped-def]
            what = fault(cluster)
            if what is not None:
                cluster.note(what)

        cluster.clock.after(cluster.random.uniform(1, 60), strike)
    try:
        cluster.clock.run(LIMIT_SECONDS, lambda: cluster.status.state in (State.COMPLETE, State.FAILED))
        if cluster.status.state is not State.COMPLETE and not is_right_to_fail(cluster):
            raise Violation(f"ended as {cluster.status.state}: {cluster.status.reason} {cluster.status.message}")
        if cluster.faults == 0 and cluster.status.attempt != 1:
            raise Violation("a healthy job was restarted")
    except Violation as violation:
        pytest.fail(f"seed {seed}: {violation}\n{cluster.tell_story()}")
    return cluster


def is_right_to_fail(cluster: Cluster) -> bool:
    """The same failure three times on end without progress is a crash loop, whoever's fault it was."""
    return cluster.status.reason in (Reason.CRASH_LOOP, Reason.CHECKPOINTS_LOST) and cluster.faults >= 3


@pytest.mark.parametrize("block", range(10))
def test_stories(block: int) -> None:
    for seed in range(block, SEEDS, 10):
        tell(seed)


def test_a_story_is_told_the_same_way_twice() -> None:
    assert tell(7).story == tell(7).story
