"""Short stories told out, each of a situation that the design speaks of; the seeded ones of `test_sim` find the rest.

`truth` watches here as well: a story need only say how it is to end.
"""

from collections.abc import Callable
from typing import Any

import pytest
from actor import COLLECTIVE, Actor, Ranks
from cluster import Cluster, make_spec
from stories import LIMIT_SECONDS, STEPS, go_on
from truth import identity

from ciuic_api.jobstatus import State
from ciuic_api.lineage import CheckpointId
from ciuic_api.reasons import Reason
from ciuic_operator.planner.hanging import WITHOUT_CULPRIT

NEVER = 10_000
"""More steps than any story has."""
STEP_LIMIT_SECONDS = 20


def begin(nodes: int = 2, memory_every: int = 1, persist_every: int = 6, **spec: Any) -> Cluster:
    cluster = Cluster(seed=1, spec=make_spec(nodes=nodes, steps=STEPS, **spec))
    cluster.memory_every, cluster.persist_every = memory_every, persist_every
    return cluster


def slot(cluster: Cluster, number: int) -> Actor:
    """In its newest pod."""
    return max((a for a in cluster.actors.values() if a.slot == number), key=lambda a: a.incarnation)


def trains(cluster: Cluster, step: int, attempt: int = 1) -> bool:
    """Every slot has made this step in this attempt."""
    ranks = [actor.ranks for actor in cluster.actors.values()]
    return len(ranks) == cluster.spec.nodes and all(
        one is not None and one.alive and one.attempt == attempt and one.step >= step for one in ranks
    )


def kill_rank(cluster: Cluster, number: int) -> None:
    assert slot(cluster, number).kill_rank()
    cluster.faults += 1
    cluster.note(f"the rank of slot {number} is killed")


def delete_pod(cluster: Cluster, number: int) -> None:
    cluster.faults += 1
    cluster.delete_pod(slot(cluster, number).uid)
    cluster.note(f"the pod of slot {number} is deleted")


def starts(cluster: Cluster) -> list[tuple[int, CheckpointId | None]]:
    return cluster.truth.released


def wait_until(cluster: Cluster, so: Callable[[], bool]) -> None:
    cluster.clock.run(LIMIT_SECONDS, so)
    assert so(), cluster.tell_story()


def test_two_crashes_around_one_step_mix_nothing() -> None:
    """Slot 0 copies step 16 of attempt 2, slot 1 that of attempt 3: two states of one step, and neither is whole. The agent
    throws away what its next attempt does not come from, and the planner tells copies apart by step and attempt.
    """
    cluster = begin(persist_every=NEVER)
    wait_until(cluster, lambda: trains(cluster, 5))
    kill_rank(cluster, 1)
    wait_until(cluster, lambda: trains(cluster, 15, attempt=2))
    _crash_between_copies(cluster, CheckpointId(16, 2), first=0, second=1)
    wait_until(cluster, lambda: trains(cluster, 15, attempt=3))
    _crash_between_copies(cluster, CheckpointId(16, 3), first=1, second=0)
    go_on(cluster)
    assert starts(cluster)[2:] == [(3, CheckpointId(15, 2)), (4, CheckpointId(15, 2))]


def _crash_between_copies(cluster: Cluster, copy: CheckpointId, first: int, second: int) -> None:
    slot(cluster, first).copy_seconds, slot(cluster, second).copy_seconds = (0.0, 0.0), (0.3, 0.3)
    wait_until(cluster, lambda: copy in slot(cluster, first).memory)
    assert copy not in slot(cluster, second).memory
    kill_rank(cluster, second)


def test_a_cut_off_attempt_commits_on_and_deletes_nothing() -> None:
    """Its pods are given up with their nodes; they reach the store and each other, and no operator."""
    cluster = begin()
    cluster.upload_seconds = (0.1, 0.3)
    wait_until(cluster, lambda: CheckpointId(12, 1) in cluster.store.manifests)
    lost = [actor.uid for actor in cluster.actors.values()]
    for uid in lost:
        cluster.lose_pod(uid)
    cluster.faults += 1
    wait_until(cluster, lambda: len(starts(cluster)) == 2)
    kept = len(cluster.deleted)
    go_on(cluster)
    restored = starts(cluster)[1][1]
    assert restored is not None and restored.attempt == 1
    cluster.clock.run(LIMIT_SECONDS, lambda: False)
    assert CheckpointId(STEPS, 1) in cluster.store.manifests, "the old attempt went on to its end"
    assert not [uid for uid, _ in cluster.deleted[kept:] if uid in lost]


@pytest.mark.parametrize("moment", ["after-persist", "after-act"])
@pytest.mark.parametrize("of", ["the attempt's number", "the pod's number", "the release"])
def test_an_operator_that_dies_around_its_write_repeats_nothing(moment: str, of: str) -> None:
    """No number twice and no second start are invariants of every story; here the write in question is really hit."""
    cluster = begin()
    wait_until(cluster, lambda: trains(cluster, 10))
    delete_pod(cluster, 1)
    status = {
        "the attempt's number": lambda: True,
        "the pod's number": lambda: cluster.status.attempt == 2,
        "the release": lambda: cluster.status.attempt == 2 and cluster.status.next_incarnation == 3,
    }
    wait_until(cluster, status[of])
    cluster.crash_next = moment
    wait_until(cluster, lambda: cluster.operator is None)
    assert cluster.status.attempt == 2
    assert cluster.status.released == (of == "the release")
    go_on(cluster)
    assert [attempt for attempt, _ in starts(cluster)] == [1, 2]
    assert cluster.status.restarts.total == 1


def test_a_rank_that_dies_while_the_operator_is_down_is_recovered_on_its_return() -> None:
    cluster = begin()
    wait_until(cluster, lambda: trains(cluster, 10))
    cluster.stop_operator()
    kill_rank(cluster, 1)
    down_until = cluster.clock.now + 60
    wait_until(cluster, lambda: cluster.clock.now >= down_until)
    assert cluster.status.attempt == 1
    cluster.start_operator()
    go_on(cluster)
    assert [attempt for attempt, _ in starts(cluster)] == [1, 2]
    restored = starts(cluster)[1][1]
    assert restored is not None and restored.step >= 9


def test_a_pod_that_goes_before_the_first_commit_means_step_0_and_that_is_said() -> None:
    cluster = begin(persist_every=NEVER)
    wait_until(cluster, lambda: trains(cluster, 3))
    delete_pod(cluster, 1)
    go_on(cluster)
    assert starts(cluster) == [(1, None), (2, None)]
    assert Reason.NO_CHECKPOINT_YET in cluster.reasons


def test_a_store_that_was_emptied_after_a_commit_ends_the_job() -> None:
    cluster = begin()
    wait_until(cluster, lambda: cluster.status.last_committed is not None)
    cluster.store.manifests.clear()
    cluster.store.shards.clear()
    for number in (0, 1):
        delete_pod(cluster, number)
    cluster.clock.run(LIMIT_SECONDS, lambda: cluster.status.state is State.FAILED)
    assert cluster.status.reason == Reason.CHECKPOINTS_LOST, cluster.tell_story()
    assert starts(cluster) == [(1, None)], "never at step 0"


def test_with_the_store_away_memory_is_enough() -> None:
    cluster = begin()
    wait_until(cluster, lambda: trains(cluster, 20))
    cluster.store.up = False
    kill_rank(cluster, 1)
    wait_until(cluster, lambda: trains(cluster, 22, attempt=2))
    restored = starts(cluster)[1][1]
    assert restored is not None and restored.step >= 19
    cluster.store.up = True
    go_on(cluster)


def test_several_faults_at_once_cost_one_restart() -> None:
    cluster = begin(nodes=4)
    wait_until(cluster, lambda: trains(cluster, 20) and CheckpointId(18, 1) in cluster.store.manifests)
    cluster.stop_operator()
    cluster.store.up = False
    kill_rank(cluster, 0)
    delete_pod(cluster, 1)
    slot(cluster, 2).restart_container()
    cut = slot(cluster, 3).uid
    cluster.network.cut.add(cut)
    cluster.faults += 1
    cluster.clock.after(10, cluster.start_operator)
    cluster.clock.after(20, lambda: setattr(cluster.store, "up", True))
    cluster.clock.after(30, lambda: cluster.network.cut.discard(cut))
    go_on(cluster)
    assert [attempt for attempt, _ in starts(cluster)] == [1, 2]
    restored = starts(cluster)[1][1]
    assert restored is not None and restored.step == 18, "with the pod its shards of newer copies went"


def test_a_fault_before_the_release_costs_no_attempt_of_its_own() -> None:
    cluster = begin(nodes=3)
    wait_until(cluster, lambda: trains(cluster, 14) and cluster.status.last_committed is not None)
    kill_rank(cluster, 1)
    wait_until(cluster, lambda: cluster.status.attempt == 2)
    assert not cluster.status.released
    delete_pod(cluster, 2)
    go_on(cluster)
    assert cluster.status.restarts.total == 1


def test_a_fault_after_the_release_and_before_the_first_step_is_one_more_attempt() -> None:
    cluster = begin(nodes=3)
    wait_until(cluster, lambda: trains(cluster, 14))
    kill_rank(cluster, 1)
    wait_until(cluster, lambda: trains(cluster, 0, attempt=2))
    kill_rank(cluster, 2)
    go_on(cluster)
    (_, first), (_, second) = starts(cluster)[1:]
    assert first == second == identity(cluster.status.restored), "nothing newer was made in between"


def _hang(cluster: Cluster, at: str) -> Ranks:
    """The rank of slot 1 of three stands still; its peers wait for it in the collective."""
    wait_until(cluster, lambda: trains(cluster, 10))
    ranks = slot(cluster, 1).ranks
    assert ranks is not None
    ranks.hangs_at = at
    cluster.faults += 1
    cluster.note(f"slot 1 hangs at {at}")
    return ranks


@pytest.mark.parametrize(
    ("at", "limits", "rank"),
    [
        pytest.param("train/data.py:10 fetch", 1.0, 1, id="stacks-name-the-culprit"),
        pytest.param(COLLECTIVE, WITHOUT_CULPRIT, None, id="stacks-name-nobody"),
    ],
)
def test_a_hang_is_ended_after_its_limit_or_three_without_a_culprit(at: str, limits: float, rank: int | None) -> None:
    cluster = begin(nodes=3, watchdog={"deadlines": {"step": STEP_LIMIT_SECONDS}})
    since = _hang(cluster, at).moved_at
    wait_until(cluster, lambda: cluster.status.attempt == 2)
    assert limits * STEP_LIMIT_SECONDS <= cluster.clock.now - since < limits * STEP_LIMIT_SECONDS + 5
    failure = cluster.status.last_failure
    assert failure is not None
    assert (failure.reason, failure.rank) == (Reason.HANG, rank)
    go_on(cluster)
    assert cluster.status.restarts.total == 1
