"""The agent's loop: look up the facts, step the supervisor, carry out what it asks. Built and started by `__main__`."""

import asyncio
import signal
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ciuic_api.agent_config import AgentConfig
from ciuic_api.lineage import CheckpointId, counts
from ciuic_api.protocol import (
    AGENT_RESTARTED,
    DELETION_CONFIRMATION_SECONDS,
    RANKS_REMAIN,
    STOPPED_EXIT_CODE,
    AgentFailure,
    AgentState,
    Directive,
    Metrics,
    Owner,
    Preflight,
    RankState,
    Report,
    RestoreFailure,
    RunState,
    StoreState,
    UploadState,
)
from ciuic_trainer.shared import messages, progress
from ciuic_trainer.shared.memory_tier import MemoryTier, MemoryTierError, NotHeld, ShardCorrupt
from ciuic_trainer.shared.progress import ProgressReader

from . import failure, preflight, supervisor
from .launch import Launch
from .output import say
from .processes import Ranks, start_rank
from .run_store import Damaged, RunStore
from .store import Refused, Store, StoreError, Unreachable
from .supervisor import Effect, Facts, Local
from .uploads import Orders, Uploads

TICK_SECONDS = 0.5
ENDING_TICK_SECONDS = 0.05
"""While the last lines of a rank that ended are read."""
LOOK_AGAIN_SECONDS = 2.0
"""How often slot 0 looks at the run while an attempt waits for what it sees."""


def _call_soon(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(what)


class Runtime:
    def __init__(self, config: AgentConfig, environ: Mapping[str, str], memory: Path, scratch: Path) -> None:
        self._config = config
        self._launch = Launch(config, environ, memory, scratch)
        self._scratch = scratch
        self._marker = memory / "started"
        self._boot = uuid.uuid4().hex[:12]
        self._ranks = Ranks()
        self._readers: dict[int, ProgressReader] = {}
        self._directive: Directive | None = None
        self._local: Local = supervisor.boot(self._read_marker(), time.monotonic())
        self._rebooted = self._local.started
        """Attempt whose ranks died with an earlier life of this agent; 0: none."""
        self._restored: CheckpointId | None = None
        self._restore_failed: RestoreFailure | None = None
        self._restoring: asyncio.Task[None] | None = None
        self._verified: tuple[CheckpointId, ...] = ()
        self._checked: Preflight | None = None
        self._checking: asyncio.Task[None] | None = None
        self._run: RunState | None = None
        self._claimed = 0
        self._probed = False
        self._rendezvous: str | None = None
        self._sequence = 0
        self._told: tuple[object, ...] = ()
        self._pace: list[tuple[float, int]] = []
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="agent")
        self._woken = asyncio.Event()
        self._looking = asyncio.Event()
        self._wake: Callable[[], None] = lambda: None
        """Makes the loop look again, from any thread; set by `run`."""
        self.changed: Callable[[], None] = lambda: None
        """Called when a report is worth sending at once; set by `__main__`."""
        self._store: RunStore | None = None
        self._store_problem = ""
        self._uploads: Uploads | None = None
        if config.store is not None:
            self._open_store()

    def _open_store(self) -> None:
        assert self._config.store is not None
        try:
            store = Store(self._config.store)
        except Refused as error:
            self._store_problem = str(error)
            return
        world_size = self._config.nodes * self._config.ranks_per_node
        prefix, contract = self._config.store.prefix, self._config.contract
        self._store = RunStore(store, prefix, world_size=world_size, contract=contract)
        self._uploads = Uploads(
            tiers={},
            world_size=world_size,
            run=self._store,
            say=say,
            deletion_seconds=DELETION_CONFIRMATION_SECONDS,
            claim=self._claim,
        )
        self._uploads.start()

    # --- the loop -------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Until the supervisor says exit; returns the exit code."""
        loop = asyncio.get_running_loop()
        self._wake = lambda: _call_soon(loop, self._woken.set)
        loop.add_signal_handler(signal.SIGCHLD, self._woken.set)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        receiver = messages.bind(self._launch.socket_path)
        loop.add_reader(receiver, self._message, receiver)
        looking = asyncio.create_task(self._look_forever())
        try:
            while True:
                code = self._pass()
                if code is not None:
                    return code
                try:
                    async with asyncio.timeout(ENDING_TICK_SECONDS if self._ranks.ending() else TICK_SECONDS):
                        await self._woken.wait()
                except TimeoutError:
                    continue
                finally:
                    self._woken.clear()
        finally:
            looking.cancel()
            loop.remove_reader(receiver)

    def hear(self, directive: Directive) -> None:
        """From the operator: kept if it is not older than what is known."""
        known = self._directive
        if known is None or directive.attempt >= known.attempt:
            if known is None or known.slot != directive.slot:
                say(f"slot {directive.slot} of {self._config.nodes}")
            if directive != known:
                self._looking.set()
            self._directive = directive
            if self._uploads is not None and directive.attempt == self._local.attempt:
                self._uploads.orders = replace(self._uploads.orders, confirmed_at=time.monotonic())
            self._woken.set()

    def _terminate(self) -> None:
        say("told to end: ranks write a last checkpoint")
        self._local = supervisor.terminate(self._local, time.monotonic())
        self._woken.set()

    def _message(self, receiver: object) -> None:
        """Hints of the ranks: worth nothing but an earlier look."""
        try:
            datagram = receiver.recv(messages.MAX_DATAGRAM_BYTES)  # type: ignore[attr-defined]
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
        told = self._worth_telling()
        if told != self._told:
            self._told = told
            self.changed()
        return None

    def _worth_telling(self) -> tuple[object, ...]:
        """What is reported at once when it changes; everything else waits for the next second."""
        codes = tuple(rank.exit_code for rank in self._ranks.members.values())
        ended = self._ranks.alive() == 0
        return (self._local, codes, self._restore_failed, self._checked, self._run, ended and self._uploads_done())

    def _facts(self) -> Facts:
        return Facts(
            ranks_alive=self._ranks.alive(),
            ranks_started=bool(self._ranks.members),
            leftovers=len(self._ranks.left_over()) if self._leftovers_matter() else 0,
            restored=self._restored,
            restore_failed=self._restore_failed is not None,
            uploads_done=self._uploads_done(),
        )

    def _leftovers_matter(self) -> bool:
        """Looking for them reads all of /proc: only when ranks are to be ended."""
        directive = self._directive
        ending = directive is not None and (
            directive.attempt > self._local.attempt or directive.finish or directive.stop
        )
        return ending or self._local.terminated is not None

    def _uploads_done(self) -> bool:
        return self._uploads is None or self._uploads.done()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case supervisor.Kill():
                self._ranks.kill()
            case supervisor.Terminate():
                self._ranks.terminate()
            case supervisor.Adopt():
                self._adopt()
            case supervisor.Restore(directive):
                if self._restoring is None or self._restoring.done():
                    self._restoring = asyncio.create_task(self._restore(directive))
            case supervisor.Start(directive):
                self._start(directive)

    # --- a new attempt --------------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        self._ranks = Ranks()
        self._readers, self._pace = {}, []
        self._restored, self._restore_failed, self._checked, self._rebooted = None, None, None, 0
        self._rendezvous = self._launch.rendezvous()
        self._looking.set()
        if self._checking is not None:
            self._checking.cancel()
        self._checking = asyncio.create_task(self._check(self._local.attempt))

    async def _check(self, attempt: int) -> None:
        """Preflight, and which memory copies are sound; the attempt is ready when both are known."""
        loop = asyncio.get_running_loop()
        checked = await loop.run_in_executor(self._threads, preflight.check, self._config.interface)
        verified = await loop.run_in_executor(self._threads, self._verify)
        if attempt == self._local.attempt:
            self._verified, self._checked = verified, checked
            for problem in checked.problems:
                say(f"{problem.code}: {problem.message}")
            self._woken.set()

    def _tiers(self) -> dict[int, MemoryTier]:
        if self._directive is None or self._config.training is None:
            return {}
        return self._launch.tiers(self._directive.slot)

    def _verify(self) -> tuple[CheckpointId, ...]:
        sound: list[set[CheckpointId]] = []
        for tier in self._tiers().values():
            mine: set[CheckpointId] = set()
            for held in tier.held():
                try:
                    pinned, payload = tier.open_verified(held.checkpoint)
                except (NotHeld, ShardCorrupt) as error:
                    say(str(error))
                    continue
                payload.release()
                pinned.close()
                mine.add(held.checkpoint)
            sound.append(mine)
        return tuple(sorted(set.intersection(*sound), reverse=True)) if sound else ()

    async def _restore(self, directive: Directive) -> None:
        """Bring the checkpoint into memory, whole. Waits for the store as long as it does not answer."""
        assert directive.restore is not None
        wanted = directive.restore.checkpoint
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._fetch, directive, wanted)
            self._restored = wanted
        except Unreachable as error:
            say(f"checkpoint {wanted} is waited for: {error}")
            await asyncio.sleep(1.0)
        except (Damaged, StoreError, MemoryTierError) as error:
            say(f"checkpoint {wanted} can not be restored: {error}")
            self._restore_failed = RestoreFailure(checkpoint=wanted, why=str(error))
        self._woken.set()

    def _fetch(self, directive: Directive, wanted: CheckpointId) -> None:
        self._discard_dead_branches(directive)
        for rank, tier in self._tiers().items():
            try:
                pinned, payload = tier.open_verified(wanted)
                payload.release()
                pinned.close()
                continue
            except (NotHeld, ShardCorrupt):
                say(f"rank {rank}: checkpoint {wanted} comes from S3")
            if self._store is None:
                raise Damaged("the memory copy is gone and there is no store")
            record, data = self._store.read_shard(wanted, rank)
            tier.prepare(record.size_bytes)
            reservation = tier.reserve(persist=True)
            if reservation is None:
                raise Damaged("no buffer of the memory tier is free")
            tier.write_reserved(
                reservation,
                wanted,
                persist=False,
                chunks=[memoryview(data)],
                size_bytes=len(data),
            )

    def _discard_dead_branches(self, directive: Directive) -> None:
        for rank, tier in self._tiers().items():
            for held in tier.held():
                if not counts(held.checkpoint, directive.attempt, directive.lineage):
                    tier.discard(held.checkpoint)
                    say(f"rank {rank}: the memory copy {held.checkpoint} is of a dead branch and is discarded")

    def _start(self, directive: Directive) -> None:
        if directive.restore is None:
            self._discard_dead_branches(directive)
        if self._uploads is not None:
            self._uploads.tiers = self._tiers()
            self._uploads.orders = Orders(
                attempt=directive.attempt,
                slot=directive.slot,
                lineage=directive.lineage,
                keep_last=directive.keep_last,
                confirmed_at=time.monotonic(),
            )
            self._uploads.abandon_dead_branches()
        # Noted before the first rank lives: if the agent dies now, the attempt counts as started and is not run again.
        self._write_marker(directive.attempt)
        for rank in self._launch.ranks(directive):
            self._readers[rank.number] = ProgressReader(rank.progress_file)
            self._ranks.members[rank.number] = start_rank(rank.number, rank.command, rank.environ, self._wake)
        start = f"from {directive.restore.checkpoint}" if directive.restore else "at step 0"
        say(f"attempt {directive.attempt}: {len(self._ranks.members)} ranks start {start}")

    def _read_marker(self) -> int:
        return int(self._marker.read_text()) if self._marker.exists() else 0

    def _write_marker(self, attempt: int) -> None:
        draft = self._marker.with_suffix(".new")
        draft.write_text(str(attempt))
        draft.rename(self._marker)

    # --- slot 0 and the run ---------------------------------------------------------------------------------------

    async def _look_forever(self) -> None:
        """Slot 0 looks at the run whenever an attempt waits for what it sees."""
        while True:
            self._looking.clear()
            if self._should_look():
                await asyncio.get_running_loop().run_in_executor(self._threads, self._look, self._local.attempt)
                self._woken.set()
            try:
                async with asyncio.timeout(LOOK_AGAIN_SECONDS):
                    await self._looking.wait()
            except TimeoutError:
                continue

    def _should_look(self) -> bool:
        directive = self._directive
        if directive is None or directive.slot != 0 or self._config.store is None:
            return False
        return self._local.state in (AgentState.QUIESCED, AgentState.RESTORING)

    def _look(self, attempt: int) -> None:
        """In a thread. The claim comes first, so that what is told of the owner is what was written."""
        if self._store is None:
            message, state = self._store_problem, StoreState.REFUSED
            self._run = RunState(store=state, message=message, scanned_attempt=attempt)
            return
        try:
            if not self._probed:
                self._store.probe(self._boot)
                self._probed = True
            self._claim()
            seen = self._store.look()
        except Unreachable as error:
            seen = RunState(store=StoreState.UNREACHABLE, message=str(error))
        except (StoreError, Damaged) as error:
            seen = RunState(store=StoreState.REFUSED, message=str(error))
        if self._run is None or seen.store is not self._run.store:
            say(f"the store is {seen.store}{': ' if seen.message else ''}{seen.message}")
        self._run = RunState(
            store=seen.store,
            message=seen.message,
            owner=seen.owner,
            attempts=seen.attempts,
            manifests=seen.manifests,
            refused=seen.refused,
            contract=seen.contract,
            scanned_attempt=attempt,
            claimed_attempt=self._claimed,
        )

    def _claim(self) -> bool:
        """OWNER.json names this attempt. In a thread; also asked before each commit, as the store may have been away."""
        directive, store = self._directive, self._store
        if directive is None or store is None or not directive.claim or directive.attempt != self._local.attempt:
            return False
        if self._claimed >= directive.attempt:
            return True
        config = self._config
        mine = Owner(
            uid=config.job_uid,
            cluster=config.cluster,
            namespace=config.namespace,
            name=config.job,
            attempt=directive.attempt,
        )
        if store.claim(mine, directive.take_over):
            self._claimed = directive.attempt
            return True
        return False

    # --- the report -----------------------------------------------------------------------------------------------

    def report(self) -> Report:
        self._sequence += 1
        now = time.monotonic()
        ended = self._ranks.alive() == 0
        return Report(
            boot=self._boot,
            sequence=self._sequence,
            incarnation=self._config.incarnation,
            attempt=self._local.attempt,
            state=self._local.state,
            ranks=self._rank_states(now),
            failure=self._failure(now),
            held=self._held(),
            run=self._run,
            restore_failed=self._restore_failed,
            preflight=self._checked,
            rendezvous=self._rendezvous,
            metrics=self._metrics(now),
            upload=self._uploads.state() if self._uploads is not None else UploadState(),
            uploads_done=ended and self._uploads_done(),
        )

    def _rank_states(self, now: float) -> tuple[RankState, ...]:
        states = []
        for number, rank in sorted(self._ranks.members.items()):
            seen = self._readers[number].read()
            states.append(
                RankState(
                    rank=number,
                    phase=str(seen.phase) if seen else "init",
                    step=seen.step if seen else 0,
                    micro_step=seen.micro_step if seen else 0,
                    unmoved_seconds=now - seen.moved_at_seconds if seen else 0.0,
                    exit_code=rank.exit_code,
                )
            )
        return tuple(states)

    def _failure(self, now: float) -> AgentFailure | None:
        if self._rebooted and self._rebooted == self._local.attempt:
            return AgentFailure(reason=AGENT_RESTARTED, message="the agent was started anew (was it out of memory?)")
        if self._local.ranks_remain:
            left = self._ranks.left_over()
            return AgentFailure(reason=RANKS_REMAIN, message=f"processes {left} do not end")
        dead = [rank for rank in self._ranks.members.values() if rank.exit_code not in (None, 0, STOPPED_EXIT_CODE)]
        if not dead:
            return None
        first = min(dead, key=lambda rank: rank.ended_at or now)
        return failure.describe(first.rank, first.exit_code or 0, list(first.lines), now - (first.ended_at or now))

    def _held(self) -> tuple[CheckpointId, ...]:
        """While ranks run, what the headers say; before an attempt is released, what was verified."""
        if self._local.state is AgentState.QUIESCED:
            return self._verified
        held = [{found.checkpoint for found in tier.held()} for tier in self._tiers().values()]
        return tuple(sorted(set.intersection(*held), reverse=True)) if held else ()

    def _metrics(self, now: float) -> Metrics | None:
        reader = self._readers.get(0)
        seen = reader.read() if reader is not None else None
        if seen is None or seen.step == 0 or seen.phase is progress.Phase.INIT:
            return None
        if not self._pace or self._pace[-1][1] != seen.step:
            self._pace = [*self._pace[-30:], (now, seen.step)]
        (then, first), (last, step) = self._pace[0], self._pace[-1]
        return Metrics(
            step=seen.step,
            loss=seen.loss,
            tokens_per_second=seen.tokens_per_second,
            steps_per_second=(step - first) / (last - then) if last > then else None,
            eval_loss=seen.eval_loss,
        )
