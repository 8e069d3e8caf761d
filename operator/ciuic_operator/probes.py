"""The HTTP port for Prometheus and the kubelet: /metrics, /healthz, /readyz. Built by `__main__`.

Alive is more than answering: a watch without progress, a loop that is stuck or a lost Lease end the process through the
liveness probe. That costs nothing: a restart of the operator changes nothing for running jobs.
"""

import asyncio
from collections.abc import Callable, Mapping

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from .metrics import Metrics

SILENT_SECONDS = 300.0
"""A watch that made no progress for longer than this is dead, and so is a pass that has lasted for as long."""
LAG_SECONDS = 1.0

Check = Callable[[], str]
"""Empty when all is well, else a sentence."""


class Probes:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._alive: dict[str, Check] = {}
        self._ready = False
        self._runner: web.AppRunner | None = None

    def watch_over(self, checks: Mapping[str, Check]) -> None:
        """What liveness asks from now on. Before, while the process waits for its Lease, it only has to answer."""
        self._alive = dict(checks)

    def ready(self, ready: bool) -> None:
        """Whether agents should be sent here."""
        self._ready = ready

    async def start(self, port: int, host: str | None = None) -> int:
        app = web.Application()
        app.router.add_get("/metrics", self._serve_metrics)
        app.router.add_get("/healthz", self._serve_health)
        app.router.add_get("/readyz", self._serve_readiness)
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        chosen: int = self._runner.addresses[0][1]
        return chosen

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def measure_lag(self) -> None:
        """How late a timer fires is how long others keep the event loop busy. Runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self._metrics.loop_lag.set(max(0.0, loop.time() - due))

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _serve_health(self, _: web.Request) -> web.Response:
        wrong = {name: sentence for name, check in self._alive.items() if (sentence := check())}
        text = "\n".join(f"{name}: {sentence}" for name, sentence in wrong.items()) or "ok"
        return web.Response(status=503 if wrong else 200, text=text)

    async def _serve_readiness(self, _: web.Request) -> web.Response:
        return web.Response(status=200, text="ok") if self._ready else web.Response(status=503, text="not ready yet")


def progress(age: Callable[[], float]) -> Check:
    """For a watch."""
    return lambda: f"no progress for {age():.0f} s" if age() > SILENT_SECONDS else ""
