"""What must hold in every story, judged by what really happened there and not by what planner or agents believe.

Called by `cluster` at each persisted plan, each start of ranks and each deletion of a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ciuic_api.jobstatus import TERMINAL, CheckpointRef, JobStatus, State
from ciuic_api.lineage import CheckpointId
from ciuic_api.protocol import Directive, RunState, StoreState
from ciuic_api.reasons import Reason
from ciuic_operator.model import EmitEvent, Plan, World

if TYPE_CHECKING:
    from actor import Actor
    from cluster import Cluster

NEEDED = 2
"""The newest so many that count are never deleted."""


class Violation(AssertionError):
    """An invariant of the design does not hold; the message tells what happened before."""


def identity(reference: CheckpointRef | None) -> CheckpointId | None:
    return None if reference is None else CheckpointId(reference.step, reference.attempt)


@dataclass
class Truth:
    released: list[tuple[int, CheckpointId | None]] = field(default_factory=list)
    """Attempts whose ranks were let go, in that order, and what they started from."""

    def counts(self, checkpoint: CheckpointId) -> bool:
        """Whether the next attempt would go on with what led to this checkpoint, and lose nothing that it contains."""
        limit: int | None = None
        for attempt, restored in reversed(self.released):
            if attempt == checkpoint.attempt:
                return limit is None or checkpoint.step <= limit
            if restored is None:
                return False
            limit = restored.step if limit is None else min(limit, restored.step)
        return False

    # --- plans

    def check(self, cluster: Cluster, world: World, plan: Plan) -> None:
        before, after = cluster.status, plan.status
        if after.attempt < before.attempt or after.next_incarnation < before.next_incarnation:
            raise Violation(f"a number went back: {before.attempt}->{after.attempt}")
        if before.state in TERMINAL and after.state is not before.state:
            raise Violation(f"{before.state} is not the end: {after.state}")
        if after.attempt > before.attempt and before.released and after.restarts.total > cluster.faults:
            raise Violation(f"{after.restarts.total} restarts for {cluster.faults} faults: {plan.message}")
        self._check_account(before, after)
        if after.state is State.FAILED and plan.reason is Reason.CHECKPOINTS_LOST:
            good = [c for c in cluster.store.manifests - cluster.corrupt if self.counts(c)]
            if good:
                raise Violation(f"failed although {max(good)} can be restored: {plan.message}")
        if after.released and not before.released:
            self._check_release(cluster, world, plan)
            self.released.append((after.attempt, identity(after.restored)))

    def _check_account(self, before: JobStatus, after: JobStatus) -> None:
        """No more is kept than there was time, nothing that is lost is found again, and what is written stays small."""
        account = after.account
        if account is None:
            return
        for share in (after.ettr, after.ettr_last_hour):
            if share is not None and not 0 <= float(share) <= 1:
                raise Violation(f"a share of {share}: {account}")
        pairs = list(zip(account.marks, account.marks[1:], strict=False))
        if any(b.kept < a.kept or b.step < a.step or b.kept - a.kept > b.at - a.at for a, b in pairs):
            raise Violation(f"more is kept than there was time, or marks go back: {account}")
        if after.lost_steps < before.lost_steps or len(after.ledger) > 8 or len(account.marks) > 24:
            raise Violation(
                f"steps were found again, or a list grows: {before.lost_steps} {after.lost_steps} {account}"
            )

    def _check_release(self, cluster: Cluster, world: World, plan: Plan) -> None:
        """What is chosen counts, is whole, is the newest that is known, and is waited for where the store is needed."""
        status, run = plan.status, world.reports[0].run
        if run is None or run.scanned_attempt != status.attempt:
            raise Violation(f"attempt {status.attempt} starts on an old look at the run: {run}")
        chosen = identity(status.restored)
        if len(plan.directives) != cluster.spec.nodes:
            raise Violation(f"only {len(plan.directives)} slots are let go")
        newest = self._newest_known(world)
        if chosen is None:
            self._check_step_0(plan, run, newest)
            return
        if not self.counts(chosen):
            raise Violation(f"restored {chosen}, which is of a dead branch: {self.released}")
        self._check_whole(cluster, plan, chosen, run)
        if chosen.step < newest:
            raise Violation(
                f"restored {chosen} although step {newest} is known: {run} {world.job.status.last_committed}"
            )

    def _check_step_0(self, plan: Plan, run: RunState, newest: int) -> None:
        if run.store is not StoreState.OK:
            raise Violation("started at step 0, and nobody knows what the store holds")
        if newest or plan.status.last_committed is not None:
            raise Violation(f"started at step 0 beside {run.manifests}, {plan.status.last_committed}")
        warned = any(isinstance(action, EmitEvent) and action.warning for action in plan.actions)
        if self.released and (plan.reason is not Reason.NO_CHECKPOINT_YET or not warned):
            raise Violation(f"started at step 0 again and did not say so: {plan.reason} {plan.actions}")

    def _newest_known(self, world: World) -> int:
        """Its step. What the store does not show any more is of no use; while it is away, what was committed counts."""
        status, run = world.job.status, world.reports[0].run
        found = set.intersection(*(set(report.held) for report in world.reports.values()))
        if run is not None and run.store is StoreState.OK:
            found.update(run.manifests)
        elif status.last_committed is not None:
            found.add(CheckpointId(status.last_committed.step, status.last_committed.attempt))
        bad = {CheckpointId(known.step, known.attempt) for known in status.quarantined}
        return max((checkpoint.step for checkpoint in found - bad if self.counts(checkpoint)), default=0)

    def _check_whole(self, cluster: Cluster, plan: Plan, chosen: CheckpointId, run: RunState) -> None:
        for uid, directive in plan.directives.items():
            restore, actor = directive.restore, cluster.actors.get(uid)
            if restore is None or restore.checkpoint != chosen:
                raise Violation(f"{uid} is told another checkpoint than {chosen}: {restore}")
            if restore.tier == "s3" and run.store is not StoreState.OK:
                raise Violation(f"{uid} is let go to a store that is away")
            in_memory = restore.tier == "memory" and (actor is None or chosen in actor.memory)
            if not in_memory and chosen not in cluster.store.manifests:
                raise Violation(f"{uid} can not have its shard of {chosen} from {restore.tier}")

    # --- agents

    def check_adoption(self, actor: Actor, attempt: int) -> None:
        if actor.leftovers or (actor.ranks is not None and actor.ranks.alive):
            raise Violation(f"{actor.uid} is ready for attempt {attempt}, and something of {actor.ranks} lives there")

    def check_start(self, cluster: Cluster, actor: Actor, directive: Directive) -> None:
        """Reachable pods run one attempt; each starts an attempt once; what it starts from it has."""
        wanted = directive.restore.checkpoint if directive.restore else None
        if actor.started >= directive.attempt:
            raise Violation(f"attempt {directive.attempt} is started twice in {actor.uid}")
        if wanted is not None and wanted not in actor.memory:
            raise Violation(f"{actor.uid} starts from {wanted}, which it does not have")
        if (directive.attempt, wanted) not in self.released:
            raise Violation(f"{actor.uid} starts {directive.attempt} from {wanted}, released were {self.released}")
        if actor.uid in cluster.unreachable:
            return  # it knows no better
        if cluster.status.released and cluster.status.attempt != directive.attempt:
            raise Violation(f"{actor.uid} starts attempt {directive.attempt}, the job is at {cluster.status.attempt}")
        for uid, other in cluster.actors.items():
            reachable = uid not in cluster.network.cut and not cluster.pods[uid].deleting and not other.gone
            if reachable and other.ranks is not None and other.ranks.alive and other.ranks.attempt < directive.attempt:
                raise Violation(f"{uid} still runs attempt {other.ranks.attempt} when {directive.attempt} starts")

    def check_deletion(self, cluster: Cluster, uid: str, checkpoint: CheckpointId) -> None:
        """Nobody deletes what the newest attempt may need, whatever he was told last."""
        counting = sorted((c for c in cluster.store.manifests if self.counts(c)), reverse=True)
        needed = {*counting[:NEEDED], self.released[-1][1]}
        if checkpoint in needed:
            raise Violation(f"{uid} deletes {checkpoint}, which attempt {self.released[-1][0]} needs")
        cluster.deleted.append((uid, checkpoint))
