"""The point an attempt starts from. Pure; used by the planner when every slot is ready.

The newest step on the lineage for which every slot's shards exist in its memory or in S3, all of one identity.
Never silently step 0: when something was committed and nothing can be had, the job fails.
"""

from dataclasses import dataclass

from ciuic_api.jobstatus import JobStatus
from ciuic_api.lineage import Attempt, CheckpointId, on_lineage
from ciuic_api.protocol import Report, RunState, StoreState
from ciuic_api.reasons import Reason


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Exactly one of three: start (from `checkpoint`, or at 0 when it is None), wait, or give up."""

    verdict: str
    """start | wait | fail"""
    reason: Reason
    message: str
    checkpoint: CheckpointId | None = None


def known_attempts(status: JobStatus, run: RunState | None) -> tuple[Attempt, ...]:
    """Links of the lineage from status and S3; status wins, as it is written first."""
    links = {link.attempt: link for link in (run.attempts if run else ())}
    for link in status.lineage:
        restored = CheckpointId(link.restored.step, link.restored.attempt) if link.restored else None
        links[link.attempt] = Attempt(attempt=link.attempt, parent=link.parent, restored=restored)
    return tuple(links[number] for number in sorted(links))


def choose(status: JobStatus, reports: dict[int, Report], nodes: int, has_store: bool) -> Choice:
    """`reports` holds one report for each slot 0..nodes-1, all quiesced at the attempt that is to start."""
    run = reports[0].run
    store = run.store if run is not None else None
    attempts = known_attempts(status, run)
    bad = {CheckpointId(q.step, q.attempt) for q in status.quarantined}
    manifests = set(run.manifests) - bad if run is not None and has_store and store is StoreState.OK else set()
    held = {slot: set(report.held) for slot, report in reports.items()}
    everywhere = set.intersection(*held.values()) if held else set()
    usable = manifests | everywhere
    newest = next(iter(on_lineage(usable, status.parent, attempts)), None) if status.parent is not None else None
    committed = status.last_committed

    if has_store and store is not StoreState.OK:
        if newest is not None and (committed is None or newest.step >= committed.step):
            return _start(newest, everywhere, refused=())
        why = run.message if run is not None and run.message else "slot 0 has not reached it yet"
        reason = Reason.STORE_REFUSED if store is StoreState.REFUSED else Reason.WAITING_FOR_STORE
        return Choice(verdict="wait", reason=reason, message=f"the checkpoint store is needed to go on: {why}")
    if newest is not None:
        refused = run.refused if run is not None else ()
        return _start(newest, everywhere, refused, skipped=committed is not None and committed.step > newest.step)
    if committed is not None or bad or (run is not None and run.refused):
        what = (
            f"checkpoint {committed.step}.a{committed.attempt} was committed"
            if committed
            else "the run has checkpoints"
        )
        details = "; ".join(run.refused) if run is not None and run.refused else "the store has no usable one"
        message = (
            f"{what}, but none can be restored ({details}); bring them back and apply the job again,"
            " or choose another checkpoint.run to start at step 0"
        )
        return Choice(verdict="fail", reason=Reason.CHECKPOINTS_LOST, message=message)
    if status.parent is not None:
        if not has_store:
            message = "the script starts again: its checkpoints, if any, are its own affair"
        else:
            message = "no checkpoint had been written yet: the job starts at step 0 again"
        return Choice(verdict="start", reason=Reason.NO_CHECKPOINT_YET, message=message)
    return Choice(verdict="start", reason=Reason.FIRST_START, message="the run is new: ranks start at step 0")


def _start(
    checkpoint: CheckpointId, everywhere: set[CheckpointId], refused: tuple[str, ...], skipped: bool = False
) -> Choice:
    tier = "memory" if checkpoint in everywhere else "S3"
    message = f"ranks start from step {checkpoint.step} (checkpoint {checkpoint}, from {tier})"
    if refused:
        message += f"; passed over: {'; '.join(refused)}"
    elif skipped:
        message += "; a newer checkpoint had been committed and can not be used"
    return Choice(verdict="start", reason=Reason.RESTORING, message=message, checkpoint=checkpoint)
