"""The agent's loop: look up the facts, step the supervisor, carry out what it asks. Built and started by `__main__`."""

import asyncio
import signal
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ciuic_api.agent_config import AgentConfig
from ciuic_api.protocol import (
    AGENT_RESTARTED,
    DELETION_CONFIRMATION_SECONDS,
    RANKS_REMAIN,
    AgentFailure,
    AgentState,
    Directive,
    Report,
    UploadState,
)
from ciuic_trainer.shared import messages

from . import memory, supervisor
from .launch import Launch
from .local_ranks import LocalRanks
from .marker import Marker
from .off_loop import in_thread
from .output import say
from .readiness import Readiness
from .restoring import Restoring
from .run_store import RunStore
from .run_watch import RunWatch
from .store import Refused, Store
from .supervisor import Effect, Facts, Local
from .uploads import Orders, Uploads
from .witness import Witness

TICK_SECONDS = 0.5
ENDING_TICK_SECONDS = 0.05
"""While the last lines of a rank that ended are read."""
LOOK_AGAIN_SECONDS = 2.0
"""How often slot 0 looks at the run while an attempt waits for what it sees."""


class Runtime:
    def __init__(self, config: AgentConfig, environ: Mapping[str, str], memory_path: Path, scratch: Path) -> None:
        self._config = config
        self._launch = Launch(config, environ, memory_path, scratch)
        self._marker = Marker(memory_path / "started")
        self._boot = uuid.uuid4().hex[:12]
        self._directive: Directive | None = None
        self._local: Local = supervisor.boot(self._marker.read(), time.monotonic())
        self._rebooted = self._local.started
        """Attempt whose ranks died with an earlier life of this agent; 0: none."""
        self._released = 0
        """Attempt whose lineage the memory tier and the uploads follow."""
        self._not_started: AgentFailure | None = None
        """Why the ranks of the attempt could not be started."""
        self._rendezvous: str | None = None
        self._sequence = 0
        self._told: tuple[object, ...] = ()
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="agent")
        self._woken = asyncio.Event()
        self._looking = asyncio.Event()
        self._wake: Callable[[], None] = lambda: None
        """Makes the loop look again, from any thread; set by `run`."""
        self._look_again: Callable[[], None] = lambda: None
        """Makes slot 0 look at the run again, likewise."""
        self.changed: Callable[[], None] = lambda: None
        """Called when a report is worth sending at once; set by `__main__`."""
        self._store, problem = self._open_store()
        self._watch = RunWatch(config, self._boot, self._store, say, problem)
        self._ranks = LocalRanks(self._launch, say, self._woken.set)
        self._readiness = Readiness(config.interface, self._threads, say, self._woken.set)
        self._restoring = Restoring(self._store, self._threads, say, self._woken.set)
        self._witness = Witness(self._store, self._threads, say, self._woken.set)
        self._uploads: Uploads | None = None
        if self._store is not None:
            self._uploads = Uploads(
                run=self._store,
                world_size=self._launch.world_size,
                claim=self._watch.claim,
                owns=self._watch.owns,
                committing=self._committing,
                say=say,
                deletion_seconds=DELETION_CONFIRMATION_SECONDS,
            )
            self._uploads.start()

    def _open_store(self) -> tuple[RunStore | None, str]:
        config = self._config.store
        if config is None:
            return None, ""
        try:
            store = Store(config)
        except Refused as error:
            return None, str(error)
        world_size, contract = self._launch.world_size, self._config.contract
        return RunStore(store, config.prefix, world_size=world_size, contract=contract), ""

    # --- the loop -------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Until the supervisor says exit; returns the exit code."""
        loop = asyncio.get_running_loop()
        self._wake = lambda: _call_soon(loop, self._woken.set)
        self._look_again = lambda: _call_soon(loop, self._looking.set)
        loop.add_signal_handler(signal.SIGCHLD, self._woken.set)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        receiver = messages.bind(self._launch.socket_path)
        loop.add_reader(receiver, self._message, receiver)
        self._ranks.prefork()
        looking = asyncio.create_task(self._look_forever())
        try:
            while True:
                code = self._pass()
                if code is not None:
                    return code
                with suppress(TimeoutError):
                    async with asyncio.timeout(ENDING_TICK_SECONDS if self._ranks.processes.ending() else TICK_SECONDS):
                        await self._woken.wait()
                self._woken.clear()
        finally:
            looking.cancel()
            loop.remove_reader(receiver)

    def hear(self, directive: Directive) -> None:
        """From the operator: kept if it is not older than what is known."""
        known = self._directive
        if known is not None and directive.attempt < known.attempt:
            return
        if known is None or known.slot != directive.slot:
            say(f"slot {directive.slot} of {self._config.nodes}")
        if directive != known:
            self._looking.set()
        self._directive = directive
        if directive.attempt == self._local.attempt:
            self._watch.directive = directive
            if self._uploads is not None:
                self._uploads.confirm(directive.attempt, directive.keep_last, time.monotonic())
        self._resume_uploads(directive)
        self._woken.set()

    def _terminate(self) -> None:
        say("told to end: ranks write a last checkpoint")
        self._local = supervisor.terminate(self._local, time.monotonic())
        self._woken.set()

    def _message(self, receiver: socket.socket) -> None:
        """Hints of the ranks: worth nothing but an earlier look."""
        try:
            datagram = receiver.recv(messages.MAX_DATAGRAM_BYTES)
        except BlockingIOError:
            return
        message = messages.decode(datagram)
        if isinstance(message, messages.CheckpointWritten) and self._uploads is not None:
            self._uploads.wake()
        elif isinstance(message, messages.Record):
            say(f"rank {message.rank}: {message.reason}: {message.message}")

    def _pass(self) -> int | None:
        now = time.monotonic()
        for rank in self._ranks.processes.reap(now):
            say(f"rank {rank.rank} ended with exit code {rank.exit_code}")
        while True:
            before = self._local
            self._local, effects = supervisor.step(before, self._directive, self._facts(), now)
            if self._local.state is not before.state or self._local.attempt != before.attempt:
                say(f"attempt {self._local.attempt}: {self._local.state}")
            for effect in effects:
                if isinstance(effect, supervisor.Exit):
                    return effect.code
                self._carry_out(effect)
            if self._local == before:
                break
        self._ranks.look()
        self._bear_witness()
        told = self._worth_telling()
        if told != self._told:
            self._told = told
            self.changed()
        return None

    def _worth_telling(self) -> tuple[object, ...]:
        """What is reported at once when it changes; everything else waits for the next second."""
        return (
            self._local,
            self._ranks.exit_codes(),
            self._restoring.failed,
            self._restoring.broken,
            self._not_started,
            self._readiness.checked,
            self._watch.seen,
            self._uploads_done(),
            self._witness.newest,
        )

    def _bear_witness(self) -> None:
        """Of a standstill when the operator asks; of a rank that ended badly at once, before its peers are killed."""
        directive, attempt = self._directive, self._local.attempt
        if directive is None or directive.attempt != attempt or not self._ranks.processes.members:
            return
        if directive.evidence:
            self._witness.ask(attempt, directive.evidence, directive.slot, self._ranks.subjects)
        if self._failure(time.monotonic()) is not None:
            self._witness.keep(attempt, directive.slot, self._ranks.subjects)

    def _facts(self) -> Facts:
        processes, restoring = self._ranks.processes, self._restoring
        return Facts(
            ranks_alive=processes.alive(),
            ranks_started=bool(processes.members),
            leftovers=len(processes.left_over()) if self._leftovers_matter() else 0,
            restored=restoring.restored,
            restore_failed=restoring.failed is not None or self._broken() is not None,
            uploads_done=self._uploads is None or self._uploads.done(),
            importing=self._ranks.is_importing(time.monotonic()),
        )

    def _broken(self) -> AgentFailure | None:
        """Why this pod can not run the attempt."""
        return self._restoring.broken or self._not_started

    def _leftovers_matter(self) -> bool:
        """Looking for them reads all of /proc: only when ranks are to be ended."""
        directive = self._directive
        ending = directive is not None and (
            directive.attempt > self._local.attempt or directive.finish or directive.stop
        )
        return ending or self._local.terminated is not None

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case supervisor.Kill():
                self._ranks.processes.kill()
            case supervisor.Terminate():
                self._ranks.processes.terminate()
            case supervisor.Adopt():
                self._adopt()
            case supervisor.Restore(directive):
                self._release(directive)
                self._restore(directive)
            case supervisor.Start(directive):
                self._release(directive)
                self._start(directive)

    # --- a new attempt --------------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        attempt = self._local.attempt
        self._ranks.begin()
        self._restoring.forget()
        self._not_started, self._rebooted = None, 0
        self._rendezvous = self._launch.rendezvous()
        self._watch.directive = self._directive
        self._looking.set()
        self._readiness.begin(
            self._tiers(), lambda: self._local.attempt == attempt and self._local.state is AgentState.QUIESCED
        )

    def _tiers(self) -> memory.Tiers:
        if self._directive is None or self._config.training is None:
            return {}
        return self._launch.tiers(self._directive.slot)

    def _release(self, directive: Directive) -> None:
        """Once per attempt: from here on its lineage is what counts. Uploads first, as they hold what is discarded."""
        if self._released == directive.attempt:
            return
        self._released = directive.attempt
        tiers = self._tiers()
        if self._uploads is not None:
            self._uploads.order(self._orders(directive, directive.attempt))
        memory.discard_dead_branches(tiers, directive, say)

    def _resume_uploads(self, directive: Directive) -> None:
        """What an earlier life of this agent left to upload goes on before the next attempt does."""
        if self._uploads is None or self._uploads.attempt or not self._rebooted:
            return
        tip = directive.attempt if directive.attempt == self._local.attempt else directive.parent
        if tip is not None:
            self._uploads.order(replace(self._orders(directive, tip), confirmed_at=float("-inf")))

    def _orders(self, directive: Directive, tip: int) -> Orders:
        return Orders(
            attempt=tip,
            slot=directive.slot,
            lineage=directive.lineage,
            tiers=self._tiers(),
            keep_last=directive.keep_last,
            confirmed_at=time.monotonic(),
        )

    def _restore(self, directive: Directive) -> None:
        assert directive.restore is not None
        attempt = directive.attempt
        self._restoring.start(
            directive.restore.checkpoint,
            self._tiers(),
            lambda: self._local.attempt == attempt and self._local.terminated is None,
        )

    def _start(self, directive: Directive) -> None:
        try:
            # Noted before the first rank lives: if the agent dies now, the attempt counts as started.
            self._marker.write(directive.attempt)
            count = self._ranks.start(directive, self._wake)
        except OSError as error:
            message = f"the ranks could not be started: {error}"
            say(message)
            fingerprint = f"StartFailed/{error.errno}"
            self._not_started = AgentFailure(reason="StartFailed", message=message, fingerprint=fingerprint)
            return
        start = f"from {directive.restore.checkpoint}" if directive.restore else "at step 0"
        say(f"attempt {directive.attempt}: {count} ranks start {start}")

    # --- slot 0 and the run ---------------------------------------------------------------------------------------

    async def _look_forever(self) -> None:
        """Slot 0 looks at the run whenever an attempt waits for what it sees."""
        while True:
            self._looking.clear()
            if self._should_look():
                attempt = self._local.attempt
                await in_thread(self._threads, lambda: self._watch.look(attempt))  # noqa: B023 - awaited at once
                self._woken.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_SECONDS):
                    await self._looking.wait()

    def _committing(self) -> None:
        """An attempt that is to start must be able to start from what was committed, however late."""
        self._watch.outdate()
        self._look_again()

    def _should_look(self) -> bool:
        directive = self._directive
        if directive is None or directive.slot != 0 or self._config.store is None:
            return False
        return self._local.state in (AgentState.QUIESCED, AgentState.RESTORING)

    # --- the report -----------------------------------------------------------------------------------------------

    def report(self) -> Report:
        self._sequence += 1
        now = time.monotonic()
        # Before the state of the uploads: "done" beside an older manifest than the last would hide the last one.
        uploads_done = self._uploads_done()
        # Before what is seen of the run, which must not lack what was committed.
        upload = self._upload_state(now)
        return Report(
            boot=self._boot,
            sequence=self._sequence,
            incarnation=self._config.incarnation,
            attempt=self._local.attempt,
            state=self._local.state,
            ranks=self._ranks.states(now),
            failure=self._failure(now),
            # While ranks run, what the headers say; before an attempt is released, what was read and compared.
            held=self._readiness.verified if self._local.state is AgentState.QUIESCED else memory.held(self._tiers()),
            run=self._watch.seen,
            restore_failed=self._restoring.failed,
            preflight=self._readiness.checked,
            rendezvous=self._rendezvous,
            phase_times=self._ranks.phase_times(),
            evidence=self._witness.newest,
            metrics=self._ranks.metrics(now),
            upload=upload,
            uploads_done=uploads_done,
        )

    def _uploads_done(self) -> bool:
        alive = self._ranks.processes.alive()
        if alive or self._uploads is None:
            return not alive
        unknown = bool(self._rebooted) and not self._uploads.attempt  # whose slot this is has not been heard yet
        return not unknown and self._uploads.done()

    def _upload_state(self, now: float) -> UploadState:
        state = self._uploads.state() if self._uploads is not None else UploadState()
        if self._restoring.waits is not None and not state.failing_seconds:
            since, message = self._restoring.waits
            return UploadState(
                committed=state.committed, pending=state.pending, failing_seconds=now - since, message=message
            )
        return state

    def _failure(self, now: float) -> AgentFailure | None:
        if self._rebooted and self._rebooted == self._local.attempt:
            return AgentFailure(reason=AGENT_RESTARTED, message="the agent was started anew (was it out of memory?)")
        if self._local.ranks_remain:
            left = self._ranks.processes.left_over()
            return AgentFailure(reason=RANKS_REMAIN, message=f"processes {left[:20]} do not end")
        return self._broken() or self._ranks.failure(now)


def _call_soon(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(what)
