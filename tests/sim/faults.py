"""What can happen to a job, drawn from a seed. Each returns what it did, for the story, or None when it hit nothing."""

from collections.abc import Callable

from actor import Actor
from cluster import Cluster

from ciuic_api.lineage import on_lineage


def _living(cluster: Cluster) -> list[Actor]:
    return [
        actor
        for uid, actor in cluster.actors.items()
        if not actor.gone and uid in cluster.pods and not cluster.pods[uid].deleting
    ]


def kill_rank(cluster: Cluster) -> str | None:
    actors = _living(cluster)
    actor = cluster.random.choice(actors) if actors else None
    if actor is None or not actor.kill_rank():
        return None
    cluster.faults += 1
    return f"rank of {actor.uid} killed"


def restart_container(cluster: Cluster) -> str | None:
    actors = _living(cluster)
    if not actors:
        return None
    actor = cluster.random.choice(actors)
    cluster.faults += 1
    actor.restart_container()
    return f"container of {actor.uid} restarted"


def delete_pod(cluster: Cluster) -> str | None:
    living = [pod for pod in cluster.pods.values() if not pod.deleting]
    if not living:
        return None
    pod = cluster.random.choice(living)
    cluster.faults += 1
    cluster.delete_pod(pod.uid)
    return f"pod {pod.name} deleted"


def operator_dies(cluster: Cluster) -> str | None:
    if cluster.operator is None:
        return None
    cluster.stop_operator()
    cluster.clock.after(cluster.random.uniform(0.5, 20), cluster.start_operator)
    return "operator killed"


def operator_dies_around_a_write(cluster: Cluster) -> str | None:
    cluster.crash_next = cluster.random.choice(("after-persist", "after-act"))
    return f"operator will die {cluster.crash_next}"


def store_outage(cluster: Cluster) -> str | None:
    if not cluster.store.up:
        return None
    cluster.store.up = False

    def back() -> None:
        cluster.store.up = True
        cluster.note("store is back")

    cluster.clock.after(cluster.random.uniform(2, 40), back)
    return "store down"


def network_cut(cluster: Cluster) -> str | None:
    actors = _living(cluster)
    if not actors:
        return None
    uid = cluster.random.choice(actors).uid
    cluster.network.cut.add(uid)
    cluster.clock.after(cluster.random.uniform(2, 60), lambda: cluster.network.cut.discard(uid))
    return f"{uid} cut off"


def bad_network(cluster: Cluster) -> str | None:
    network = cluster.network
    network.loss, network.repeat, network.delay_seconds = 0.3, 0.3, 0.4

    def better() -> None:
        network.loss, network.repeat, network.delay_seconds = 0.0, 0.0, 0.05

    cluster.clock.after(cluster.random.uniform(5, 30), better)
    return "messages are lost, late and repeated"


def corrupt_newest(cluster: Cluster) -> str | None:
    """Not the last good one: then there is nothing to go on from, and failing is right."""
    status, store = cluster.status, cluster.store
    if status.attempt == 0:
        return None
    good = on_lineage(store.manifests - cluster.corrupt, status.attempt, tuple(store.attempts.values()))
    if len(good) < 2:
        return None
    cluster.corrupt.add(good[0])
    cluster.faults += 1
    return f"{good[0]} altered in the store"


FAULTS: tuple[Callable[[Cluster], str | None], ...] = (
    kill_rank,
    kill_rank,
    delete_pod,
    restart_container,
    operator_dies,
    operator_dies_around_a_write,
    store_outage,
    network_cut,
    bad_network,
    corrupt_newest,
)
