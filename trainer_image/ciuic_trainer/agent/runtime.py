"""The agent's loop: look up the facts, step the supervisor, carry out what it asks. Built and started by `__main__`."""

import asyncio
import signal
import socket
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from ciuic_api.agent_config import AgentConfig
from ciuic_api.lineage import CheckpointId
from ciuic_api.protocol import (
    AGENT_RESTARTED,
    DELETION_CONFIRMATION_SECONDS,
    RANKS_REMAIN,
    AgentFailure,
    AgentState,
    Directive,
    Preflight,
    PreflightProblem,
    Report,
    RestoreFailure,
    UploadState,
)
from ciuic_trainer.shared import messages
from ciuic_trainer.shared.memory_tier import MemoryTierError
from ciuic_trainer.shared.progress import Progress, ProgressReader

from . import forking, memory, preflight, supervisor
from .evidence import Subject
from .forking import ForkServer
from .launch import Launch
from .marker import Marker
from .output import say
from .phase_times import PhaseTimes
from .processes import Ranks
from .records import Damaged
from .reporting import Pace, rank_failure, rank_states
from .run_store import RunStore
from .run_watch import RunWatch
from .store import Refused, Store, StoreError, Unreachable
from .supervisor import Effect, Facts, Local
from .uploads import Orders, Uploads
from .witness import Witness

TICK_SECONDS = 0.5
ENDING_TICK_SECONDS = 0.05
"""While the last lines of a rank that ended are read."""
LOOK_AGAIN_SECONDS = 2.0
"""How often slot 0 looks at the run while an attempt waits for what it sees."""
CHECK_AGAIN_SECONDS = 10.0
"""How often the pod is checked again while something is wrong with it."""
FETCH_AGAIN_SECONDS = 1.0

Result = TypeVar("Result")


class Runtime:
    def __init__(self, config: AgentConfig, environ: Mapping[str, str], memory_path: Path, scratch: Path) -> None:
        self._config = config
        self._launch = Launch(config, environ, memory_path, scratch)
        self._marker = Marker(memory_path / "started")
        self._boot = uuid.uuid4().hex[:12]
        self._fork_server: ForkServer | None = None
        self._ranks = Ranks()
        self._readers: dict[int, ProgressReader] = {}
        self._pace = Pace(0)
        self._phase_times = PhaseTimes()
        self._directive: Directive | None = None
        self._local: Local = supervisor.boot(self._marker.read(), time.monotonic())
        self._rebooted = self._local.started
        """Attempt whose ranks died with an earlier life of this agent; 0: none."""
        self._released = 0
        """Attempt whose lineage the memory tier and the uploads follow."""
        self._restored: CheckpointId | None = None
        self._restore_failed: RestoreFailure | None = None
        self._broken: AgentFailure | None = None
        """Why this pod can not run the attempt."""
        self._restoring: asyncio.Task[None] | None = None
        self._restore_waits: tuple[float, str] | None = None
        """Since when a restore has waited for the store, and what it says."""
        self._verified: tuple[CheckpointId, ...] = ()
        self._checked: Preflight | None = None
        self._checking: asyncio.Task[None] | None = None
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
        self._prefork()
        looking = asyncio.create_task(self._look_forever())
        try:
            while True:
                code = self._pass()
                if code is not None:
                    return code
                with suppress(TimeoutError):
                    async with asyncio.timeout(ENDING_TICK_SECONDS if self._ranks.ending() else TICK_SECONDS):
                        await self._woken.wait()
                self._woken.clear()
        finally:
            looking.cancel()
            loop.remove_reader(receiver)

    def _prefork(self) -> None:
        """A process to fork ranks from, unless there is one or none is worth it. One that failed early is not tried again."""
        server = self._fork_server
        if server is not None and (server.state is not forking.State.ENDED or not server.was_ready):
            return
        modules = self._launch.preloaded()
        if not modules:
            return
        loop = asyncio.get_running_loop()
        self._fork_server = ForkServer(modules, say, forget=loop.remove_reader)
        self._ranks.fork_server = self._fork_server
        channel = self._fork_server.start(self._launch.environ(), time.monotonic())
        loop.add_reader(channel, self._hear_fork_server, self._fork_server)

    def _hear_fork_server(self, server: ForkServer) -> None:
        server.read()
        self._woken.set()

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
        for rank in self._ranks.reap(now):
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
        self._phase_times.look(self._seen())
        self._bear_witness()
        told = self._worth_telling()
        if told != self._told:
            self._told = told
            self.changed()
        return None

    def _worth_telling(self) -> tuple[object, ...]:
        """What is reported at once when it changes; everything else waits for the next second."""
        codes = tuple(rank.exit_code for rank in self._ranks.members.values())
        seen = self._watch.seen
        return (
            self._local,
            codes,
            self._restore_failed,
            self._broken,
            self._checked,
            seen,
            self._uploads_done(),
            self._witness.newest,
        )

    def _seen(self) -> dict[int, Progress | None]:
        return {number: reader.read() for number, reader in self._readers.items()}

    def _bear_witness(self) -> None:
        """Of a standstill when the operator asks; of a rank that ended badly at once, before its peers are killed."""
        directive, attempt = self._directive, self._local.attempt
        if directive is None or directive.attempt != attempt or not self._ranks.members:
            return
        if directive.evidence:
            self._witness.ask(attempt, directive.evidence, directive.slot, self._subjects)
        if self._failure(time.monotonic()) is not None:
            self._witness.keep(attempt, directive.slot, self._subjects)

    def _subjects(self) -> list[Subject]:
        return [
            Subject(
                rank=rank.rank,
                pid=rank.running_pid,
                exit_code=rank.exit_code,
                stacks_file=self._launch.stacks_file(self._local.attempt, rank.rank),
                progress=asdict(seen) if (seen := self._readers[rank.rank].read()) else {},
                lines=tuple(rank.lines),
            )
            for rank in self._ranks.members.values()
        ]

    def _facts(self) -> Facts:
        return Facts(
            ranks_alive=self._ranks.alive(),
            ranks_started=bool(self._ranks.members),
            leftovers=len(self._ranks.left_over()) if self._leftovers_matter() else 0,
            restored=self._restored,
            restore_failed=self._restore_failed is not None or self._broken is not None,
            uploads_done=self._uploads is None or self._uploads.done(),
            importing=self._fork_server is not None and self._fork_server.is_importing(time.monotonic()),
        )

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
                self._ranks.kill()
            case supervisor.Terminate():
                self._ranks.terminate()
            case supervisor.Adopt():
                self._adopt()
            case supervisor.Restore(directive):
                self._release(directive)
                if self._restoring is None or self._restoring.done():
                    self._restoring = asyncio.create_task(self._restore(directive))
            case supervisor.Start(directive):
                self._release(directive)
                self._start(directive)

    async def _in_thread(self, what: Callable[[], Result]) -> Result | Exception:
        """Its result or what it raised: a task that ends by an exception that nobody awaits ends in silence."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, what)
        await asyncio.wait({future})
        error = future.exception()
        if error is None:
            return future.result()
        if not isinstance(error, Exception):
            raise error
        return error

    # --- a new attempt --------------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        self._ranks = Ranks(fork_server=self._fork_server)
        self._prefork()
        self._readers = {}
        self._restored, self._restore_failed, self._broken, self._restore_waits = None, None, None, None
        self._checked, self._verified, self._rebooted = None, (), 0
        self._rendezvous = self._launch.rendezvous()
        self._watch.directive = self._directive
        self._looking.set()
        if self._checking is not None:
            self._checking.cancel()
        self._checking = asyncio.create_task(self._check(self._local.attempt))

    async def _check(self, attempt: int) -> None:
        """Preflight, and which memory copies are sound; the attempt is ready when both are known."""
        tiers = self._tiers()
        verified = await self._in_thread(lambda: memory.verified(tiers, say))
        if isinstance(verified, Exception):
            say("".join(traceback.format_exception(verified)))
            verified = ()
        while self._local.attempt == attempt and self._local.state is AgentState.QUIESCED:
            checked = await self._in_thread(lambda: preflight.check(self._config.interface))
            if isinstance(checked, Exception):
                problem = PreflightProblem(code="CheckFailed", message=f"the pod could not be checked: {checked!r}")
                checked = Preflight(problems=(problem,))
            if checked != self._checked:
                for problem in checked.problems:
                    say(f"{problem.code}: {problem.message}")
            self._verified, self._checked = verified, checked
            self._woken.set()
            if not checked.problems:
                return
            await asyncio.sleep(CHECK_AGAIN_SECONDS)

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

    async def _restore(self, directive: Directive) -> None:
        """Bring the checkpoint into memory, whole. Waits for the store as long as it does not answer."""
        assert directive.restore is not None
        checkpoint, attempt, tiers = directive.restore.checkpoint, directive.attempt, self._tiers()

        def wanted() -> bool:
            return self._local.attempt == attempt and self._local.terminated is None

        outcome = await self._in_thread(lambda: memory.fetch(tiers, checkpoint, self._store, wanted, say))
        if not wanted():
            return
        if outcome is None:
            self._restored, self._restore_waits = checkpoint, None
        elif isinstance(outcome, (Unreachable, Refused, memory.Busy)):
            # Nothing is wrong with the checkpoint: that it can not be had now must not cost it.
            since = self._restore_waits[0] if self._restore_waits is not None else time.monotonic()
            message = f"checkpoint {checkpoint} is waited for: {outcome}"
            if self._restore_waits is None or self._restore_waits[1] != message:
                say(message)
            self._restore_waits = since, message
            await asyncio.sleep(FETCH_AGAIN_SECONDS)
        elif isinstance(outcome, (Damaged, StoreError, MemoryTierError)):
            say(f"checkpoint {checkpoint} can not be restored: {outcome}")
            self._restore_failed = RestoreFailure(checkpoint=checkpoint, why=str(outcome))
        elif isinstance(outcome, memory.NoRoom):
            say(str(outcome))
            self._broken = AgentFailure(reason="MemoryTierFull", message=str(outcome), fingerprint="MemoryTierFull")
        else:
            say("".join(traceback.format_exception(outcome)))
            message = f"checkpoint {checkpoint} could not be brought into memory: {outcome!r}"
            self._broken = AgentFailure(reason="RestoreBroken", message=message, fingerprint="RestoreBroken")
        self._woken.set()

    def _start(self, directive: Directive) -> None:
        try:
            # Noted before the first rank lives: if the agent dies now, the attempt counts as started.
            self._marker.write(directive.attempt)
            starts = self._launch.ranks(directive)
        except OSError as error:
            message = f"the ranks could not be started: {error}"
            say(message)
            self._broken = AgentFailure(reason="StartFailed", message=message, fingerprint=f"StartFailed/{error.errno}")
            return
        self._phase_times = PhaseTimes()
        self._pace = Pace(directive.restore.checkpoint.step if directive.restore else 0)
        for rank in starts:
            self._readers[rank.number] = ProgressReader(rank.progress_file)
            self._ranks.start(rank.number, rank.command, rank.environ, self._wake)
        start = f"from {directive.restore.checkpoint}" if directive.restore else "at step 0"
        say(f"attempt {directive.attempt}: {len(self._ranks.members)} ranks start {start}")

    # --- slot 0 and the run ---------------------------------------------------------------------------------------

    async def _look_forever(self) -> None:
        """Slot 0 looks at the run whenever an attempt waits for what it sees."""
        while True:
            self._looking.clear()
            if self._should_look():
                attempt = self._local.attempt
                await self._in_thread(lambda: self._watch.look(attempt))  # noqa: B023 - awaited at once
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
        first = self._readers.get(0)
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
            ranks=rank_states(self._ranks.members, self._readers, now),
            failure=self._failure(now),
            # While ranks run, what the headers say; before an attempt is released, what was read and compared.
            held=self._verified if self._local.state is AgentState.QUIESCED else memory.held(self._tiers()),
            run=self._watch.seen,
            restore_failed=self._restore_failed,
            preflight=self._checked,
            rendezvous=self._rendezvous,
            phase_times=self._phase_times.told(),
            evidence=self._witness.newest,
            metrics=self._pace.metrics(first.read(), now) if first is not None else None,
            upload=upload,
            uploads_done=uploads_done,
        )

    def _uploads_done(self) -> bool:
        if self._ranks.alive() or self._uploads is None:
            return not self._ranks.alive()
        unknown = bool(self._rebooted) and not self._uploads.attempt  # whose slot this is has not been heard yet
        return not unknown and self._uploads.done()

    def _upload_state(self, now: float) -> UploadState:
        state = self._uploads.state() if self._uploads is not None else UploadState()
        if self._restore_waits is not None and not state.failing_seconds:
            since, message = self._restore_waits
            return UploadState(
                committed=state.committed, pending=state.pending, failing_seconds=now - since, message=message
            )
        return state

    def _failure(self, now: float) -> AgentFailure | None:
        if self._rebooted and self._rebooted == self._local.attempt:
            return AgentFailure(reason=AGENT_RESTARTED, message="the agent was started anew (was it out of memory?)")
        if self._local.ranks_remain:
            left = self._ranks.left_over()
            return AgentFailure(reason=RANKS_REMAIN, message=f"processes {left[:20]} do not end")
        return self._broken or rank_failure(list(self._ranks.members.values()), now)


def _call_soon(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(what)
