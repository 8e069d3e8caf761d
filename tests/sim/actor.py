"""One pod of the simulation: the real supervisor around pretend ranks, memory tier and uploads.

Ranks of an attempt make a step when the ranks of that attempt run in every slot, as collectives would have it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace
from uploading import Uploading, within

import builders
from ciuic_api.lineage import CheckpointId, fork_steps
from ciuic_api.protocol import (
    AGENT_RESTARTED,
    RANKS_REMAIN,
    AgentFailure,
    AgentState,
    Directive,
    Evidence,
    Owner,
    Preflight,
    RankState,
    Report,
    RestoreFailure,
    RunState,
    Stack,
    UploadState,
)
from ciuic_trainer.agent import supervisor
from ciuic_trainer.agent.supervisor import Facts, Local

if TYPE_CHECKING:
    from cluster import Cluster

STEP_SECONDS = 0.5
MEMORY_COPIES = 3
CHECK_SECONDS = 0.3
COLLECTIVE = "torch/distributed/distributed_c10d.py:2501 all_reduce"
"""Where ranks wait for their peers."""
LOOK_SECONDS = (0.05, 0.6)
LOAD_SECONDS = (0.5, 1.5)


@dataclass
class Ranks:
    """The processes of one attempt in this pod (one rank is enough)."""

    attempt: int
    step: int
    alive: bool = True
    exit_code: int | None = None
    ready: bool = False
    """Loaded, and waiting for its peers."""
    moved_at: float = 0.0
    hangs_at: str = ""
    """The frame it stands in for ever; empty while it comes to the collectives of its peers."""


@dataclass
class Actor:
    cluster: Cluster
    uid: str
    slot: int
    incarnation: int
    local: Local = field(default_factory=Local)
    directive: Directive | None = None
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
    copy_seconds: tuple[float, float] = (0.0, 0.3)
    """How long a copy into memory takes. It may be cut short by a fault between one slot's and the next's."""
    upload_seconds: tuple[float, float] = field(init=False)
    uploading: Uploading = field(init=False)

    def __post_init__(self) -> None:
        self.upload_seconds = self.cluster.upload_seconds
        self.uploading = Uploading(self)

    def boot(self) -> None:
        """The agent's process starts, perhaps not for the first time in this pod."""
        self.life += 1
        self.local = supervisor.boot(self.started, self.cluster.clock.now)
        self.directive, self.ranks, self.run, self.claimed = None, None, None, 0
        self.restored, self.restore_failed, self.restoring, self.sequence = None, None, None, 0
        self.uploading.reboot()
        self._check()
        if self.slot == 0:
            self.later(self.cluster.random.uniform(*LOOK_SECONDS), lambda: self._look(self.local.attempt))
        self._tick(self.life)

    @property
    def boot_id(self) -> str:
        return f"{self.uid}/{self.life}"

    def _check(self) -> None:
        """Preflight, and which memory copies are sound."""
        self.checked = False

        def known() -> None:
            self.checked = True

        self.later(self.cluster.random.uniform(0.1, CHECK_SECONDS), known)

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """In this life of the agent, or never."""
        life = self.life

        def call() -> None:
            if not self.gone and self.life == life:
                what()
                self.act()

        self.cluster.clock.after(seconds, call)

    def _tick(self, life: int) -> None:
        if self.gone or self.life != life:
            return
        if self.slot == 0 and self.run is not None:
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
                self.uploading.confirm(directive, self.cluster.clock.now)
            if self.life > 1:
                self.uploading.resume(directive, self.local.attempt)
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
                uploads_done=self.uploading.done,
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
                self.later(0.4, self._stop_gracefully)
            case supervisor.Adopt(attempt):
                self.cluster.truth.check_adoption(self, attempt)
                self.ranks, self.restored, self.restore_failed, self.restoring = None, None, None, None
                self._check()
                if self.slot == 0:
                    self.later(self.cluster.random.uniform(*LOOK_SECONDS), lambda: self._look(attempt))
            case supervisor.Restore(directive):
                self._release(directive)
                self._restore(directive)
            case supervisor.Start(directive):
                self._release(directive)
                self._start(directive)
            case supervisor.Exit():
                self.gone = True
                self.cluster.agent_exits(self.uid)

    def _stop_gracefully(self) -> None:
        ranks = self.ranks
        if ranks is not None and ranks.alive:
            self._copy(ranks, persist=True)
            ranks.alive, ranks.exit_code = False, 75

    def claim(self) -> bool:
        """Slot 0: the run is ours, also before the first commit of an agent that could not write that down yet."""
        directive = self.directive
        if directive is None or not directive.claim:
            return False
        if self.claimed < directive.attempt:
            mine = Owner(uid=builders.UID, cluster=builders.CLUSTER, attempt=directive.attempt)
            if not self.cluster.store.claim(mine, directive.take_over):
                return False
            self.claimed = directive.attempt
        return True

    def _look(self, attempt: int) -> None:
        """Slot 0: what the run holds, and whether it is ours."""
        if attempt != self.local.attempt:
            return
        if self.directive is not None and self.directive.attempt == attempt:
            self.claim()
        if self.local.state is not AgentState.RUNNING or self.run is None:
            self.run = self.cluster.store.look(attempt, self.claimed)

    def outdate(self) -> None:
        """A commit was made: what was seen of the run before it is of no use for a restore."""
        if self.run is not None:
            self.run = replace(self.run, scanned_attempt=0)

    # --- ranks

    def _release(self, directive: Directive) -> None:
        self.uploading.release(directive, self.cluster.clock.now)
        limits = fork_steps(directive.attempt, directive.lineage)
        self.memory = {checkpoint for checkpoint in self.memory if within(checkpoint, limits)}

    def _restore(self, directive: Directive) -> None:
        assert directive.restore is not None
        wanted = directive.restore.checkpoint
        if wanted in self.memory:
            self.restored = wanted
        elif self.restoring != wanted:
            self.restoring = wanted
            self.later(self.cluster.random.uniform(0.3, 2.0), lambda: self._restored_from_store(wanted))

    def _restored_from_store(self, wanted: CheckpointId) -> None:
        store = self.cluster.store
        if self.restoring != wanted:
            return  # another attempt came in between
        if not store.up:
            self.restoring = None  # tried again with the next step of the supervisor
        elif wanted in store.manifests and wanted not in self.cluster.corrupt:
            self.memory.add(wanted)
            self.restored = wanted
        else:
            self.restore_failed = RestoreFailure(checkpoint=wanted, why="checksum")

    def _start(self, directive: Directive) -> None:
        self.cluster.truth.check_start(self.cluster, self, directive)
        self.started = directive.attempt
        step = directive.restore.checkpoint.step if directive.restore else 0
        self.ranks = ranks = Ranks(attempt=directive.attempt, step=step, moved_at=self.cluster.clock.now)
        self.leftovers = self.cluster.random.choice((0, 0, 1))

        def loaded() -> None:
            ranks.ready, ranks.moved_at = True, self.cluster.clock.now
            if ranks.step >= self.cluster.steps:
                ranks.alive, ranks.exit_code = False, 0  # restored at the end: nothing is left to do

        self.later(self.cluster.random.uniform(*LOAD_SECONDS), loaded)

    def completed(self, step: int) -> None:
        """All ranks of the attempt made this step."""
        ranks = self.ranks
        assert ranks is not None
        ranks.step, ranks.moved_at = step, self.cluster.clock.now
        last = step >= self.cluster.steps
        persist = step % self.cluster.persist_every == 0 or last
        if persist or step % self.cluster.memory_every == 0:
            self.later(self.cluster.random.uniform(*self.copy_seconds), lambda: self._copied(ranks, persist, last))

    def _copied(self, ranks: Ranks, persist: bool, last: bool) -> None:
        if ranks is self.ranks and ranks.alive:
            self._copy(ranks, persist)
            if last:
                ranks.alive, ranks.exit_code = False, 0
            self.cluster.copied(self)

    def _copy(self, ranks: Ranks, persist: bool) -> None:
        checkpoint = CheckpointId(ranks.step, ranks.attempt)
        if checkpoint not in self.memory:
            self.memory = {*sorted(self.memory)[1 - MEMORY_COPIES :], checkpoint}
        if persist:
            self.uploading.add(checkpoint)

    # --- what happens to it

    def kill_rank(self) -> bool:
        if self.ranks is None or not self.ranks.alive:
            return False
        self.ranks.alive, self.ranks.exit_code = False, -9
        self.act()
        return True

    def restart_container(self) -> None:
        """Out of memory: agent and ranks die, the memory tier stays."""
        self.leftovers = 0
        self.boot()

    def terminate(self) -> None:
        if not self.gone:
            self.local = supervisor.terminate(self.local, self.cluster.clock.now)
            self.act()

    def kill(self) -> None:
        self.gone = True
        if self.ranks is not None:
            self.ranks.alive = False

    # --- what it says

    def send(self) -> None:
        self.sequence += 1
        if self.uid in self.cluster.unreachable:
            return
        ranks: tuple[RankState, ...] = ()
        if self.ranks is not None:
            state = RankState(
                rank=self.slot,
                phase="step",
                step=self.ranks.step,
                exit_code=self.ranks.exit_code,
                unmoved_seconds=self.cluster.clock.now - self.ranks.moved_at,
            )
            ranks = (state,)
        self.cluster.report(
            self.uid,
            Report(
                boot=self.boot_id,
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
                evidence=self._evidence(),
                rendezvous=f"{self.uid}:{29500 + self.local.attempt}",
                upload=UploadState(committed=self.uploading.committed),
                uploads_done=self.uploading.done,
            ),
        )

    def _evidence(self) -> Evidence | None:
        """The stacks that the newest directive asks for."""
        directive, ranks = self.directive, self.ranks
        if directive is None or ranks is None or not directive.evidence or directive.attempt != ranks.attempt:
            return None
        stack = Stack(rank=self.slot, process_state="S", frames=(ranks.hangs_at or COLLECTIVE,))
        return Evidence(attempt=ranks.attempt, number=directive.evidence, stacks=(stack,))

    def _failure(self) -> AgentFailure | None:
        if self.local.ranks_remain:
            return AgentFailure(reason=RANKS_REMAIN, message="")
        if self.local.state is AgentState.EXITED and self.ranks is None:
            return AgentFailure(reason=AGENT_RESTARTED, message="the container restarted")
        return None
