"""`python -m ciuic_operator`: starts every part in its order, and ends all of them together.

A start: Lease, certificate authority, caches of pods and nodes, hub, kopf. An end: loops, hub, kopf, Lease. Exit codes:
0 stopped by a signal, 1 a part has ended (the pod starts again), 2 wrong settings, 3 another operator serves this cluster.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import kopf
import uvloop

from . import handlers, settings
from .assembly import Parts, assemble, now
from .certificates import make_server, obtain_authority, server_context
from .errors import KubeError, LeaseRefused, NotFound, OperatorError
from .kube import Kube
from .lease import Lease
from .metrics import Metrics
from .probes import Probes
from .settings import Settings, SettingsError
from .transport import Transport

log = logging.getLogger("ciuic_operator")

RETRY_SECONDS = 2.0
STOP_SECONDS = 5.0
T = TypeVar("T")


class Stopped(Exception):
    """A signal came while the start was under way."""


def main() -> int:
    try:
        chosen = settings.from_environment(os.environ)
    except SettingsError as error:
        print(f"ciuic_operator: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(
        level=chosen.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(chosen))


async def serve(chosen: Settings) -> int:
    stop = asyncio.Event()
    take_signals(stop)
    metrics = Metrics()
    probes = Probes(metrics)
    await probes.start(chosen.metrics_port)
    try:
        transport = await Transport.connect(chosen.kubeconfig)
    except OperatorError as error:
        log.error("%s", error)
        return 2
    kube = Kube(transport, lambda: lease.held(), write_seconds=chosen.lease_seconds / 3)
    lease = Lease(
        kube,
        release=chosen.release,
        pod_uid=chosen.pod_uid,
        process=uuid.uuid4().hex[:8],
        seconds=chosen.lease_seconds,
    )
    try:
        await unless(stop, lease.acquire())
        log.info("release %s holds the Lease", chosen.release)
        return await operate(chosen, kube, lease, metrics, probes, stop)
    except Stopped:
        return 0
    except LeaseRefused as refusal:
        log.error("%s", refusal)
        return 3
    except OperatorError as error:
        log.error("%s: %s", type(error).__name__, error)
        return 1
    finally:
        await lease.give_up()
        await probes.stop()
        await transport.close()


async def operate(
    chosen: Settings, kube: Kube, lease: Lease, metrics: Metrics, probes: Probes, stop: asyncio.Event
) -> int:
    """Everything that needs the Lease, until a signal comes or a part ends."""
    parts: Parts | None = None
    stop_kopf = asyncio.Event()
    tasks = {"lease": asyncio.create_task(lease.keep()), "signal": asyncio.create_task(stop.wait())}
    try:
        cluster = await unless(stop, insist("the cluster's identity", kube.cluster_uid))

        async def obtain() -> Any:
            return await obtain_authority(kube, chosen.release_namespace, chosen.hub_ca_secret, now())

        authority = await unless(stop, insist("the hub's certificate authority", obtain))
        parts = assemble(chosen, kube, lease.held, metrics, cluster, authority.certificate_pem)
        tasks["pods"] = asyncio.create_task(parts.pods.run())
        tasks["nodes"] = asyncio.create_task(parts.nodes.run())
        await unless(stop, asyncio.wait_for(parts.pods.synced.wait(), None))
        await unless(stop, asyncio.wait_for(parts.nodes.synced.wait(), None))
        await parts.hub.start(chosen.hub_port, server_context(make_server(authority, chosen.hub_host, now())))
        await unless(stop, insist("jobs", kube.list_job_keys))
        tasks["sweep"] = asyncio.create_task(parts.sweep.run())
        tasks["alerts"] = asyncio.create_task(parts.alerts.run())
        tasks["lag"] = asyncio.create_task(probes.measure_lag())
        tasks["loops"] = asyncio.create_task(parts.reconciler.lease_lost.wait())
        # Last: at its end kopf cancels every task that is younger than itself.
        tasks["kopf"] = asyncio.create_task(watch_jobs(chosen, parts, stop, stop_kopf))
        probes.watch_over(parts.checks)
        probes.ready(True)
        gc.freeze()  # modules and models stay for good: a collection that walks them stops every job's loop for 20 ms
        log.info("serving jobs; agents connect to %s", chosen.hub_url)
        await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        return verdict(tasks)
    finally:
        probes.ready(False)
        if parts is not None:
            await parts.reconciler.stop(STOP_SECONDS)
            await parts.hub.stop()
        stop_kopf.set()
        if "kopf" in tasks:
            await asyncio.wait([tasks["kopf"]], timeout=STOP_SECONDS)
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        if parts is not None:
            await parts.alerts.flush(STOP_SECONDS)


async def watch_jobs(chosen: Settings, parts: Parts, stop: asyncio.Event, stop_kopf: asyncio.Event) -> None:
    ready = asyncio.Event()

    async def reclaim_signals() -> None:
        # kopf takes the signals for itself and would cancel our loops in the middle of a pass.
        await ready.wait()
        take_signals(stop)

    reclaiming = asyncio.create_task(reclaim_signals())
    try:
        await kopf.operator(
            registry=handlers.registry(chosen.kubeconfig),
            settings=handlers.settings(),
            memo=kopf.Memo(reconciler=parts.reconciler),
            clusterwide=True,
            standalone=True,
            stop_flag=stop_kopf,
            # By itself kopf looks for the user's name, which a container's user need not have.
            identity=chosen.pod_name or "deepseekjob",
            ready_flag=ready,
        )
    finally:
        reclaiming.cancel()


def verdict(tasks: dict[str, asyncio.Task[Any]]) -> int:
    """Exit code, and a line about what has ended although it should not."""
    ended = {name: task for name, task in tasks.items() if task.done()}
    for name, task in ended.items():
        error = None if task.cancelled() else task.exception()
        if name != "signal":
            place = None if isinstance(error, OperatorError) else error
            log.error("%s has ended: %s", name, error or "without an error", exc_info=place)
    return 0 if "signal" in ended else 1


def take_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; Stopped when a signal comes first."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Stopped
        return task.result()
    finally:
        task.cancel()
        stopped.cancel()


async def insist(what: str, call: Callable[[], Awaitable[T]]) -> T:
    """Repeats a call until the server answers it."""
    said = ""
    while True:
        try:
            return await call()
        except NotFound as error:
            sentence = f"{what}: {error}; is the CRD installed?"
        except KubeError as error:
            sentence = f"{what}: {error}"
        if sentence != said:
            said = sentence
            log.warning("waiting: %s", sentence)
        await asyncio.sleep(RETRY_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
