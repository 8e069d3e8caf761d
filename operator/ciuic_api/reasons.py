"""Every reason the operator gives, with what it means and what to do. The same word is in status, events, metrics, logs."""

import enum


class Reason(enum.StrEnum):
    def __new__(cls, value: str, meaning: str) -> "Reason":
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    meaning: str

    @staticmethod
    def named(text: str) -> "Reason":
        """The reason that a status holds."""
        return next(reason for reason in Reason if reason == text)

    INVALID_SPEC = "InvalidSpec", "The spec cannot be run as it is; the message names the field and the remedy."
    WATCHDOG_CONTRADICTION = (
        "WatchdogContradiction",
        'The label ciuic.io/watchdog: "false" stands beside a spec.watchdog block; remove one of the two.',
    )
    UNKNOWN_RECEIVER = (
        "UnknownReceiver",
        "spec.alerts names a receiver that the chart does not define; the message lists those that it does.",
    )
    AGENTS_ELSEWHERE = (
        "AgentsElsewhere",
        "The pods were started by another installation of the operator and look for its address; they train on, and"
        " nothing that happens in them is seen. Suspend and resume the job to move it to this one.",
    )
    CREATING_PODS = "CreatingPods", "Rank pods are being created."
    WAITING_FOR_PODS = (
        "WaitingForPods",
        "Rank pods are scheduled, pulled or started; the message says what the slowest waits for.",
    )
    WAITING_FOR_OLD_PODS = (
        "WaitingForOldPods",
        "A pod of a deleted job of the same name still ends; its name is needed.",
    )
    UNSCHEDULABLE = "Unschedulable", "A rank pod fits on no node; the scheduler's words are in the message."
    IMAGE_UNAVAILABLE = "ImageUnavailable", "The image of a rank pod cannot be pulled; check spec.image."
    POD_CONFIG_ERROR = "PodConfigError", "A rank pod refers to something missing, mostly a Secret; create it."
    WAITING_FOR_AGENTS = "WaitingForAgents", "Pods run, their agents have not connected yet."
    PREFLIGHT_FAILED = "PreflightFailed", "A check in a pod failed before training; the message says what to change."
    WAITING_FOR_STORE = "WaitingForStore", "The checkpoint store does not answer and the job needs it to go on."
    STORE_REFUSED = "StoreRefused", "The checkpoint store refuses: credentials, bucket or conditional writes."
    RUN_OWNED = "RunOwned", "Another living job trains the same run; choose another checkpoint.run."
    RUN_OWNED_ELSEWHERE = (
        "RunOwnedElsewhere",
        "The run's owner lives in another cluster; when it is dead, name its UID in the annotation ciuic.io/take-over-run.",
    )
    RUN_HAS_CHECKPOINTS = (
        "RunHasCheckpoints",
        "resume is Never and the run has checkpoints; choose another checkpoint.run.",
    )
    CONTRACT_DIFFERS = (
        "ContractDiffers",
        "The run's checkpoints are of another model, data or world size; the message names what differs. Choose another"
        " checkpoint.run.",
    )
    MEMORY_TIER_TOO_SMALL = (
        "MemoryTierTooSmall",
        "The memory tier does not hold the shards; raise checkpoint.memory.sizeLimit.",
    )
    QUIESCING = "Quiescing", "Ranks of the attempt before are being ended everywhere."
    CHOOSING_RESTORE = "ChoosingRestore", "All pods are ready; the point to go on from is chosen and written down."
    RESTORING = "Restoring", "Ranks start from a checkpoint."
    FIRST_START = "FirstStart", "Ranks start at step 0: the run is new."
    NO_CHECKPOINT_YET = "NoCheckpointYet", "A failure came before the first checkpoint: the job starts at step 0 again."
    TRAINING = "Training", "All ranks train."
    RANK_FAILED = "RankFailed", "A training process ended with an error."
    RANK_KILLED = "RankKilled", "A training process was killed by a signal."
    RANK_STOPPED = "RankStopped", "Training processes were asked to stop by a signal that the operator did not send."
    AGENT_RESTARTED = "AgentRestarted", "The container of a pod was restarted and its ranks with it."
    RESTORE_FAILED = "RestoreFailed", "A checkpoint could not be restored; the one before is tried."
    POD_DELETED = "PodDeleted", "A rank pod was deleted."
    POD_EVICTED = "PodEvicted", "A rank pod was evicted or preempted."
    POD_FAILED = "PodFailed", "A rank pod ended."
    NODE_LOST = "NodeLost", "The node of a rank pod does not answer any more."
    STALLED = (
        "Stalled",
        "Ranks live and none moves; their stacks are being looked at, or name nobody yet. Nothing has been restarted.",
    )
    HANG = (
        "Hang",
        "Ranks lived and none moved for longer than their phase allows; see lastFailure and its evidence.",
    )
    WATCHDOG_OFF = (
        "WatchdogOff",
        "The watchdog is off: nothing is restarted. Turn it on with the label ciuic.io/watchdog.",
    )
    RESTART_BUDGET_SPENT = "RestartBudgetSpent", "More restarts than watchdog.restarts allows."
    CRASH_LOOP = "CrashLoop", "The same failure three times without progress; see lastFailure and the pods' logs."
    CHECKPOINTS_LOST = (
        "CheckpointsLost",
        "A checkpoint was committed and is gone; the job never starts at step 0 by itself.",
    )
    STARTUP_DEADLINE = "StartupDeadline", "The pods were not ready within runPolicy.startupDeadlineSeconds."
    ACTIVE_DEADLINE = "ActiveDeadline", "The job took longer than runPolicy.activeDeadlineSeconds."
    SUSPENDING = "Suspending", "A last checkpoint is written and uploaded, then the pods go."
    SUSPENDED = "Suspended", "Set runPolicy.suspend to false to go on."
    RESUMED = "Resumed", "The job goes on after a suspension."
    COMPLETED = "Completed", "All ranks ended well and the last checkpoint is safe."
