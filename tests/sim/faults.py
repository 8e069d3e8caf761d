"""What can happen to a job, drawn from a seed. Each returns what it did, for the story, or None when it hit nothing."""

from collections.abc import Callable

from actor import Actor
from cluster import Cluster

from ciuic_api.protocol import AgentState

AGAIN_SECONDS = 2.0


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


def store_outage_and_pod_lost(cluster: Cluster) -> str | None:
    """With the pod a shard of every memory copy is lost: only the store, which is away, has a whole checkpoint."""
    if store_outage(cluster) is None:
        return None
    return f"store down, and {delete_pod(cluster)}"


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


def nodes_unreachable(cluster: Cluster) -> str | None:
    """Of all slots, or of slot 0 and perhaps others. Whole, the old attempt goes on and commits past the step at which its
    successor forks from it, which then has a fault of its own.
    """
    living = sorted(_living(cluster), key=lambda actor: actor.slot)
    whole = cluster.random.random() < 0.7
    lost = [actor for actor in living if whole or actor.slot == 0 or cluster.random.random() < 0.3]
    if not lost:
        return None
    for actor in lost:
        cluster.lose_pod(actor.uid)
    cluster.faults += 1
    if whole:
        cluster.clock.after(cluster.random.uniform(5, 20), lambda: strike(cluster, kill_rank))
    return f"unreachable, and they live on: {', '.join(actor.uid for actor in lost)}"


def crash_in_copy(cluster: Cluster) -> str | None:
    """Once or twice on end: the slots hold copies of one step by two attempts."""
    cluster.crash_in_copy = True
    if cluster.random.random() < 0.5:
        cluster.clock.after(cluster.random.uniform(4, 10), lambda: setattr(cluster, "crash_in_copy", True))
    return "a rank will die while a step is copied"


def memory_copies_altered(cluster: Cluster) -> str | None:
    """Found when the next attempt looks for sound copies, so one has to come. The newest, or all that are as new as what
    the store holds: then only the store, which is away, has that.
    """
    running = [actor for actor in _living(cluster) if actor.memory and actor.local.state is AgentState.RUNNING]
    if not running:
        return None
    actor = cluster.random.choice(running)
    committed = [c for c in cluster.store.manifests if cluster.truth.counts(c)]
    altered = {max(actor.memory)}
    if committed and cluster.random.random() < 0.85:
        altered = {copy for copy in actor.memory if copy >= max(committed)}
        store_outage(cluster)
    actor.memory -= altered
    actor.uploading.pending -= altered
    names = ", ".join(str(copy) for copy in sorted(altered))
    return f"memory copies {names} of {actor.uid} altered, and {kill_rank(cluster)}"


def corrupt_newest(cluster: Cluster) -> str | None:
    """Not the last good one: then there is nothing to go on from, and failing is right."""
    good = sorted((c for c in cluster.store.manifests - cluster.corrupt if cluster.truth.counts(c)), reverse=True)
    if len(good) < 2:
        return None
    cluster.corrupt.add(good[0])
    cluster.faults += 1
    return f"{good[0]} altered in the store"


Fault = Callable[[Cluster], str | None]


def strike(cluster: Cluster, fault: Fault, tries: int = 6) -> None:
    """When there is something to hit, now or a little later."""
    what = fault(cluster)
    if what is not None:
        cluster.note(what)
    elif tries > 1:
        cluster.clock.after(AGAIN_SECONDS, lambda: strike(cluster, fault, tries - 1))


FAULTS: tuple[Fault, ...] = (
    kill_rank,
    kill_rank,
    delete_pod,
    restart_container,
    operator_dies,
    operator_dies_around_a_write,
    store_outage,
    store_outage_and_pod_lost,
    network_cut,
    network_cut,
    bad_network,
    nodes_unreachable,
    nodes_unreachable,
    nodes_unreachable,
    crash_in_copy,
    memory_copies_altered,
    memory_copies_altered,
    memory_copies_altered,
    memory_copies_altered,
    corrupt_newest,
)
