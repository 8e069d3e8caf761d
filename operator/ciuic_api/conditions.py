"""The kinds of condition in a job's status, with what True and False mean. Used by the operator, the tool and the docs."""

import enum


class ConditionKind(enum.StrEnum):
    def __new__(cls, value: str, meaning: str) -> "ConditionKind":
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    meaning: str

    ADMITTED = "Admitted", "The spec can be run as it is."
    RUNNING = "Running", "Every rank trains."
    RESTARTING = "Restarting", "Something failed, and another attempt is under way."
    SUSPENDED = "Suspended", "runPolicy.suspend is obeyed: no pod is left."
    COMPLETE = "Complete", "All ranks ended well, and the last checkpoint is in S3."
    FAILED = "Failed", "The job has ended and is not restarted."
    PODS_READY = "PodsReady", "AgentsConnected: the agent of every slot is connected. AgentsMissing: not of every slot."
    CHECKPOINT_STALE = (
        "CheckpointStale",
        "UploadsFail: S3 has refused or not answered for a minute; training goes on. UploadsWork: it answers.",
    )
    STALLED = "Stalled", "Stalled: no rank moves, and it is not sure yet that they hang. Moving: they move."
    UNKNOWN_RECEIVER = "UnknownReceiver", "spec.alerts names a receiver that the chart does not define."
    AGENTS_ELSEWHERE = "AgentsElsewhere", "The pods look for another installation of the operator."


WARNINGS = (
    ConditionKind.AGENTS_ELSEWHERE,
    ConditionKind.CHECKPOINT_STALE,
    ConditionKind.STALLED,
    ConditionKind.UNKNOWN_RECEIVER,
)
"""True when something is wrong beside the job's state. Shown by `kubectl deepseek status`."""
