"""One pod of the simulation: the real supervisor around pretend ranks, memory tier and uploads.

Ranks of an attempt make a step when the ranks of that attempt run in every slot, as collectives would have it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ciuic_api.lineage import Attempt, CheckpointId, fork_steps
from ciuic_api.protocol import (
    AGENT_RESTARTED,
    RANKS_REMAIN,
    AgentFailure,
    AgentState,
    Directive,
    Preflight,
    RankState,
    Report,
    RestoreFailure,
    RunState,
    UploadState,
)
from ciuic_trainer.agent import supervisor
from ciuic_trainer.agent.supervisor import Facts, Local

if TYPE_CHECKING:
    from cluster import Cluster

STEP_SECONDS = 0.5
MEMORY_EVERY, PERSIST_EVERY = 2, 6
DELETION_CONFIRMATION_SECONDS = 5.0


def within(checkpoint: CheckpointId, limits: dict[int, int | None]) -> bool:
    """On the lineage whose fork steps these are."""
    limit = limits.get(checkpoint.attempt, -1)
    return limit is None or checkpoint.step <= limit


@dataclass
class Ranks:
    """The processes of one attempt in this pod (one rank is enough)."""

    attempt: int
    step: int
    alive: bool = True
    exit_code: int | None = None
    ready: bool = False
    """Loaded, and waiting for its peers."""


@dataclass
class Actor:
    cluster: Cluster
    uid: str
    slot: int
    incarnation: int
    local: Local = field(default_factory=Local)
    directive: Directive | None = None
    heard_at: float = -1e9
    ranks: Ranks | None = None
    leftovers: int = 0
    memory: set[CheckpointId] = field(default_factory=set)
    started: int = 0
    """The marker in the memory tier: survives a restart of the container."""
    restored: CheckpointId | None = None
    restore_failed: RestoreFailure | None = None
    restoring: CheckpointId | None = None
    run: RunState | None = None
    claimed: int = 0
    checked: bool = False
    sequence: int = 0
    life: int = 0
    gone: bool = False
    pending: set[CheckpointId] = field(default_factory=set)
    committed: CheckpointId | None = None

    def boot(self) -> None:
        """The agent's process starts, perhaps not for the first time in this pod."""
        self.life += 1
        self.local = supervisor.boot(self.started, self.cluster.clock.now)
        self.directive, self.ranks, self.run, self.checked = None, None, None, False
        self.restored, self.restore_failed, self.sequence = None, None, 0
        life = self.life
        self._later(0.3, life, self._check)
        self._tick(life)

    def _check(self) -> None:
        self.checked = True

    def _later(self, seconds: float, life: int, what: object) -> None:
        def call() -> None:
            if not self.gone and self.life == life:
                what()  # type: ignore[operator]
                self.act()

        self.cluster.clock.after(seconds, call)

    def _tick(self, life: int) -> None:
        if self.gone or self.life != life:
            return
        if self.slot == 0:
            self._look(self.local.attempt)
        self.act()
        self.send()
        self.cluster.clock.after(1.0, lambda: self._tick(life))

    # --- what the operator says

    def hear(self, directive: Directive) -> None:
        if self.gone:
            return
        if self.directive is None or directive.attempt >= self.directive.attempt:
            self.directive = directive
            if directive.attempt == self.local.attempt:
                self.heard_at = self.cluster.clock.now
        self.act()

    def act(self) -> None:
        """Step the supervisor and do what it asks, until it asks nothing new."""
        for _ in range(4):
            before = self.local
            facts = Facts(
                ranks_alive=1 if self.ranks is not None and self.ranks.alive else 0,
                ranks_started=self.ranks is not None,
                leftovers=self.leftovers,
                restored=self.restored,
                restore_failed=self.restore_failed is not None,
                uploads_done=not self.pending,
            )
            self.local, effects = supervisor.step(self.local, self.directive, facts, self.cluster.clock.now)
            for effect in effects:
                self.carry_out(effect)
            if self.gone or (self.local == before and not effects):
                break
        if not self.gone:
            self.send()

    def carry_out(self, effect: supervisor.Effect) -> None:
        match effect:
            case supervisor.Kill():
                if self.ranks is not None and self.ranks.alive:
                    self.ranks.alive, self.ranks.exit_code = False, -9
                self.leftovers = 0
            case supervisor.Terminate():
                self._later(0.4, self.life, self._stop_gracefully)
            case supervisor.Adopt(attempt):
                self.ranks, self.restored, self.restore_failed, self.restoring = None, None, None, None
                if self.slot == 0:
                    self._look(attempt)
            case supervisor.Restore(directive):
                self._restore(directive)
            case supervisor.Start(directive):
                self._start(directive)
            case supervisor.Exit():
                self.gone = True
                self.cluster.agent_exits(self.uid)

    def _stop_gracefully(self) -> None:
        ranks = self.ranks
        if ranks is not None and ranks.alive:
            self._copy(ranks, persist=True)
            ranks.alive, ranks.exit_code = False, 75

    def _look(self, attempt: int) -> None:
        """Slot 0: what the run holds, and whether it is ours."""
        directive = self.directive
        store = self.cluster.store
        if directive is not None and directive.claim and directive.attempt == attempt > self.claimed:
            import builders

            if store.claim(builders.UID, builders.CLUSTER, attempt):
                self.claimed = attempt
        looked = store.look(attempt, self.claimed)
        if self.local.state is not AgentState.RUNNING or self.run is None:
            self.run = looked

    # --- ranks

    def _restore(self, directive: Directive) -> None:
        wanted = directive.restore.checkpoint if directive.restore else None
        assert wanted is not None
        limits = fork_steps(directive.attempt, directive.lineage)
        self.memory = {c for c in self.memory if within(c, limits)}
        if wanted in self.memory:
            self.restored = wanted
            return
        if self.restoring == wanted:
            return
        self.restoring = wanted
        self._later(self.cluster.random.uniform(0.3, 2.0), self.life, lambda: self._restored_from_store(wanted))

    def _restored_from_store(self, wanted: CheckpointId) -> None:
        store = self.cluster.store
        if not store.up:
            self.restoring = None  # tried again with the next step of the supervisor
        elif wanted in store.manifests and wanted not in self.cluster.corrupt:
            self.memory.add(wanted)
            self.restored = wanted
        else:
            self.restore_failed = RestoreFailure(checkpoint=wanted, why="checksum")

    def _start(self, directive: Directive) -> None:
        step = directive.restore.checkpoint.step if directive.restore else 0
        if directive.restore is None:
            self.memory.clear()
        self.cluster.check_start(self, directive)
        self.started = directive.attempt
        self.ranks = ranks = Ranks(attempt=directive.attempt, step=step)
        self.leftovers = self.cluster.random.choice((0, 0, 1))

        def loaded() -> None:
            ranks.ready = True
            if ranks.step >= self.cluster.steps:
                ranks.alive, ranks.exit_code = False, 0  # restored at the end: nothing is left to do

        self._later(self.cluster.random.uniform(0.5, 1.5), self.life, loaded)

    def completed(self, step: int) -> None:
        """All ranks of the attempt made this step."""
        ranks = self.ranks
        assert ranks is not None
        ranks.step = step
        last = step >= self.cluster.steps
        if step % MEMORY_EVERY == 0 or last:
            # A copy may be cut short by a fault between one slot's and the next's.
            persist = step % PERSIST_EVERY == 0 or last
            self._later(self.cluster.random.uniform(0, 0.3), self.life, lambda: self._copied(ranks, persist, last))

    def _copied(self, ranks: Ranks, persist: bool, last: bool) -> None:
        if ranks is self.ranks and ranks.alive:
            self._copy(ranks, persist)
            if last:
                ranks.alive, ranks.exit_code = False, 0

    def _copy(self, ranks: Ranks, persist: bool) -> None:
        checkpoint = CheckpointId(ranks.step, ranks.attempt)
        self.memory = {*sorted(self.memory)[-1:], checkpoint} if checkpoint not in self.memory else self.memory
        if persist:
            self.pending.add(checkpoint)
            self._later(self.cluster.random.uniform(0.3, 2.5), self.life, lambda: self._upload(checkpoint))

    def _upload(self, checkpoint: CheckpointId) -> None:
        if not self.cluster.store.put_shard(checkpoint, self.slot):
            self._later(1.0, self.life, lambda: self._upload(checkpoint))
            return
        if self.slot == 0:
            self._commit(checkpoint)
        else:
            self.pending.discard(checkpoint)

    def _commit(self, checkpoint: CheckpointId) -> None:
        """Needs no operator. Given up when the attempt was left and the others' shards will not come."""
        store = self.cluster.store
        record = self._record(checkpoint.attempt)
        if record is not None and store.commit(checkpoint, self.cluster.spec.nodes, record):
            self.pending.discard(checkpoint)
            self.committed = checkpoint
            self._retain()
        elif self.local.attempt != checkpoint.attempt:
            self.pending.discard(checkpoint)
        else:
            self._later(0.7, self.life, lambda: self._commit(checkpoint))

    def _record(self, attempt: int) -> Attempt | None:
        lineage = self.directive.lineage if self.directive is not None else ()
        return next((link for link in lineage if link.attempt == attempt), None)

    def _retain(self) -> None:
        store, directive = self.cluster.store, self.directive
        confirmed = self.cluster.clock.now - self.heard_at < DELETION_CONFIRMATION_SECONDS
        if directive is None or not confirmed or directive.attempt != self.local.attempt or not store.up:
            return
        self.cluster.check_deleter(self)
        named = {a.restored for a in store.attempts.values()}
        limits = fork_steps(self.local.attempt, tuple(store.attempts.values()))
        mine = sorted(c for c in store.manifests if within(c, limits))
        for checkpoint in mine[:-3]:
            if checkpoint not in named:
                store.manifests.discard(checkpoint)
                store.shards.pop(checkpoint, None)

    # --- what happens to it

    def kill_rank(self) -> bool:
        if self.ranks is None or not self.ranks.alive:
            return False
        self.ranks.alive, self.ranks.exit_code = False, -9
        self.act()
        return True

    def restart_container(self) -> bool:
        """Out of memory: agent and ranks die, the memory tier stays."""
        hurt = self.ranks is not None and self.ranks.alive
        self.leftovers, self.pending = 0, set()
        self.boot()
        return hurt

    def terminate(self) -> None:
        if not self.gone:
            self.local = supervisor.terminate(self.local, self.cluster.clock.now)
            self.act()

    def kill(self) -> None:
        self.gone = True
        if self.ranks is not None:
            self.ranks.alive = False

    def send(self) -> None:
        self.sequence += 1
        ranks: tuple[RankState, ...] = ()
        if self.ranks is not None:
            ranks = (RankState(rank=self.slot, phase="step", step=self.ranks.step, exit_code=self.ranks.exit_code),)
        self.cluster.report(
            self.uid,
            Report(
                boot=f"{self.uid}/{self.life}",
                sequence=self.sequence,
                incarnation=self.incarnation,
                attempt=self.local.attempt,
                state=self.local.state,
                ranks=ranks,
                failure=self._failure(),
                held=tuple(sorted(self.memory, reverse=True)),
                run=self.run,
                restore_failed=self.restore_failed,
                preflight=Preflight() if self.checked else None,
                rendezvous=f"{self.uid}:{29500 + self.local.attempt}",
                upload=UploadState(committed=self.committed),
                uploads_done=not self.pending,
            ),
        )

    def _failure(self) -> AgentFailure | None:
        if self.local.ranks_remain:
            return AgentFailure(reason=RANKS_REMAIN, message="")
        if self.local.state is AgentState.EXITED and self.ranks is None:
            return AgentFailure(reason=AGENT_RESTARTED, message="the container restarted")
        return None


__all__ = ["STEP_SECONDS", "Actor", "replace"]
