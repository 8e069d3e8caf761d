"""A story: a job of two to four pods, what befalls it, and what must hold of its end. Told by a seed."""

from functools import partial

from cluster import Cluster, make_spec
from faults import FAULTS, store_outage, strike
from truth import Violation

from ciuic_api.jobstatus import State
from ciuic_api.reasons import Reason

LIMIT_SECONDS = 900.0
STEPS = 60
FAULTS_AT_MOST = 7
FAULTS_UNTIL_SECONDS = 40.0


def begin(seed: int) -> Cluster:
    nodes = 2 + seed % 3
    cluster = Cluster(seed=seed, spec=make_spec(nodes=nodes, steps=STEPS))
    chance = cluster.random
    cluster.memory_every = chance.choice((1, 2, 6, 6))
    cluster.upload_seconds = chance.choice(((0.1, 0.6), (0.3, 2.5)))
    if chance.random() < 0.25:
        cluster.hold_an_earlier_run(steps=(6, 12, 18))
    if chance.random() < 0.25:
        cluster.clock.after(chance.uniform(0, 6), partial(strike, cluster, store_outage))
    for _ in range(chance.randint(0, FAULTS_AT_MOST)):
        fault = chance.choice(FAULTS)
        cluster.clock.after(chance.uniform(1, FAULTS_UNTIL_SECONDS), partial(strike, cluster, fault))
    return cluster


def go_on(cluster: Cluster) -> None:
    """To the end, which must be right."""
    cluster.clock.run(LIMIT_SECONDS, lambda: cluster.status.state in (State.COMPLETE, State.FAILED))
    if cluster.status.state is not State.COMPLETE and not is_right_to_fail(cluster):
        raise Violation(f"ended as {cluster.status.state}: {cluster.status.reason} {cluster.status.message}")
    if cluster.faults == 0 and cluster.status.restarts.total:
        raise Violation("a healthy job was restarted")


def is_right_to_fail(cluster: Cluster) -> bool:
    """The same failure three times on end without progress is a crash loop, whoever's fault it was."""
    return cluster.status.reason == Reason.CRASH_LOOP and cluster.faults >= 3


def what_is_wrong(cluster: Cluster) -> str | None:
    """What the story breaks, if anything, and how it came to that."""
    try:
        go_on(cluster)
    except Violation as violation:
        return f"seed {cluster.seed}: {violation}\n{cluster.tell_story()}"
    return None
