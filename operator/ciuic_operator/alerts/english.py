"""The English words of alerts. Data alone; used by `words`."""

from ciuic_api.alerting import AlertKind
from ciuic_api.reasons import Reason

from .words import Words

ENGLISH = Words(
    headlines={
        AlertKind.RESTARTING: "{job}: {reason}, restarting",
        AlertKind.RECOVERED: "{job}: trains again after {took}",
        AlertKind.NO_CHECKPOINT_YET: "{job}: no checkpoint yet, starts at step 0 again",
        AlertKind.WAITING: "{job}: waits, {reason}",
        AlertKind.CHECKPOINT_STALE: "{job}: checkpoints do not reach the store",
        AlertKind.STALLED: "{job}: steps have stopped moving",
        AlertKind.FAILED: "{job}: failed, {reason}",
        AlertKind.COMPLETE: "{job}: complete",
    },
    over={
        AlertKind.CHECKPOINT_STALE: "{job}: checkpoints reach the store again",
        AlertKind.STALLED: "{job}: steps move again",
    },
    done={
        AlertKind.RESTARTING: "attempt {attempt} is being started (restart {restarts} of this job)",
        AlertKind.RECOVERED: "attempt {attempt} trains (restart {restarts} of this job)",
        AlertKind.NO_CHECKPOINT_YET: "attempt {attempt} starts at step 0",
        AlertKind.WAITING: "the operator tries again until it is changed",
        AlertKind.CHECKPOINT_STALE: "training goes on, the uploads are tried again",
        AlertKind.FAILED: "the job is stopped, nothing is restarted any more",
    },
    what="what",
    where="where",
    slot="slot {}",
    rank="rank {}",
    node="node {}",
    joined=", ",
    did="done",
    took="took",
    recovered_in="{took} from the failure to the next completed step",
    ran_for="{took} since the start",
    cost="cost",
    lost="{lost} steps (from step {step} back to {kept})",
    unsafe="{lost} steps are not in the store yet (step {step}, newest checkpoint there {kept})",
    nothing_lost="no step is lost",
    evidence="evidence",
    details="details",
    next="next",
    then=", then ",
    many="{count} alerts",
    more="and {count} more: {kinds}",
    dropped="{count} alerts before these were not delivered",
    meanings={reason: reason.meaning for reason in Reason},
    first={},
)
