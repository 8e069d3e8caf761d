"""Uploads, commits and deletions of one pod of the simulation, in the order in which `uploads` of the agent does them.

What is to be uploaded is noted in the memory tier and survives the agent; which manifests are due does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ciuic_api.lineage import Attempt, CheckpointId, fork_steps
from ciuic_api.protocol import DELETION_CONFIRMATION_SECONDS, Directive
from ciuic_trainer.agent.records import merged, superfluous

if TYPE_CHECKING:
    from actor import Actor

AGAIN_SECONDS = 0.8


def within(checkpoint: CheckpointId, limits: dict[int, int | None]) -> bool:
    """On the lineage whose fork steps these are."""
    limit = limits.get(checkpoint.attempt, -1)
    return limit is None or checkpoint.step <= limit


@dataclass
class Uploading:
    actor: Actor
    pending: set[CheckpointId] = field(default_factory=set)
    uncommitted: set[CheckpointId] = field(default_factory=set)
    committed: CheckpointId | None = None
    attempt: int = 0
    """Its lineage counts."""
    lineage: Sequence[Attempt] = ()
    keep_last: int = 3
    confirmed_at: float = -1e9
    """When a directive last confirmed the attempt."""

    @property
    def done(self) -> bool:
        return not self.pending and not self.uncommitted

    def reboot(self) -> None:
        """The agent is a new process."""
        self.pending &= self.actor.memory
        self.uncommitted, self.committed, self.attempt, self.lineage = set(), None, 0, ()
        self.confirmed_at = -1e9

    def resume(self, directive: Directive, local_attempt: int) -> None:
        """What an earlier life left goes on before the next attempt does."""
        tip = directive.attempt if directive.attempt == local_attempt else directive.parent
        if self.attempt or tip is None:
            return
        self._order(tip, directive)
        for checkpoint in self.pending:
            self._soon(checkpoint)

    def release(self, directive: Directive, now: float) -> None:
        """An attempt was released: what is not on its lineage is given up."""
        if self.attempt != directive.attempt:
            self.committed = None
            self.confirmed_at = now
        self._order(directive.attempt, directive)

    def _order(self, tip: int, directive: Directive) -> None:
        self.attempt, self.lineage, self.keep_last = tip, directive.lineage, directive.keep_last
        limits = fork_steps(tip, directive.lineage)
        self.pending = {checkpoint for checkpoint in self.pending if within(checkpoint, limits)}
        self.uncommitted = {checkpoint for checkpoint in self.uncommitted if within(checkpoint, limits)}

    def confirm(self, directive: Directive, now: float) -> None:
        if directive.attempt == self.attempt:
            self.confirmed_at, self.keep_last = now, directive.keep_last

    def add(self, checkpoint: CheckpointId) -> None:
        self.pending.add(checkpoint)
        self._soon(checkpoint)

    def _soon(self, checkpoint: CheckpointId) -> None:
        seconds = self.actor.cluster.random.uniform(*self.actor.upload_seconds)
        self.actor.later(seconds, lambda: self.upload(checkpoint))

    def upload(self, checkpoint: CheckpointId) -> None:
        if checkpoint not in self.pending:
            return
        if not self.actor.cluster.store.put_shard(checkpoint, self.actor.slot):
            self.actor.later(AGAIN_SECONDS, lambda: self.upload(checkpoint))
            return
        self.pending.discard(checkpoint)
        newer = self.committed is not None and self.committed.step > checkpoint.step
        if self.actor.slot == 0 and not newer:  # agents upload the newest first, and with it older ones are superseded
            self.uncommitted.add(checkpoint)
            self._commit(checkpoint)

    def _commit(self, checkpoint: CheckpointId) -> None:
        """Needs no operator."""
        if checkpoint not in self.uncommitted:
            return
        cluster = self.actor.cluster
        if self.actor.claim() and cluster.store.commit(checkpoint, cluster.spec.nodes, self.lineage):
            self.actor.outdate()
            self.committed = max(checkpoint, self.committed or checkpoint)
            self.uncommitted = {other for other in self.uncommitted if other.step > checkpoint.step}
            self._retain()
        else:
            self.actor.later(AGAIN_SECONDS, lambda: self._commit(checkpoint))

    def _retain(self) -> None:
        """Needs an operator that confirmed the attempt a moment ago, and a run that is still this attempt's."""
        cluster = self.actor.cluster
        owner = cluster.store.owner
        if cluster.clock.now - self.confirmed_at >= DELETION_CONFIRMATION_SECONDS:
            return
        if owner is None or owner.attempt != self.attempt:
            return
        attempts = merged(cluster.store.attempts.values(), self.lineage)
        for checkpoint in superfluous(cluster.store.manifests, self.attempt, attempts, self.keep_last):
            cluster.truth.check_deletion(cluster, self.actor.uid, checkpoint)
            cluster.store.delete(checkpoint)
