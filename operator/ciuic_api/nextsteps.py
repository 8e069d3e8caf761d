"""What to type next, for each reason that wants somebody to do something. Pure; shown by `status` and in alerts."""

from typing import NamedTuple

from .names import ANNOTATION_TAKE_OVER, LABEL_JOB, LABEL_WATCHDOG
from .reasons import Reason


class Step(NamedTuple):
    command: str
    first: str = ""
    """What has to be done before the command, which no command can do."""

    def __str__(self) -> str:
        return f"{self.first}, then {self.command}" if self.first else self.command


_DESCRIBE = "kubectl {n}describe pods -l {label}={job}"
_FAILED_LOG = "kubectl deepseek logs {job} {n}--rank failed --tail 40"
_AGAIN = "kubectl {n}delete dsj {job} && kubectl {n}apply -f FILE"
_SUSPEND = """kubectl {n}patch dsj {job} --type merge -p '{{"spec":{{"runPolicy":{{"suspend":SWITCH}}}}}}'"""

STEPS: dict[Reason, Step] = {
    Reason.INVALID_SPEC: Step(_AGAIN, "change the field"),
    Reason.WATCHDOG_CONTRADICTION: Step("kubectl {n}label dsj {job} {watchdog}-"),
    Reason.UNKNOWN_RECEIVER: Step("kubectl {n}edit dsj {job}"),
    Reason.AGENTS_ELSEWHERE: Step(_SUSPEND.replace("SWITCH", "true")),
    Reason.UNSCHEDULABLE: Step(_DESCRIBE),
    Reason.IMAGE_UNAVAILABLE: Step(_DESCRIBE),
    Reason.POD_CONFIG_ERROR: Step(_DESCRIBE),
    Reason.WAITING_FOR_OLD_PODS: Step("kubectl {n}get pods -l {label}={job}"),
    Reason.PREFLIGHT_FAILED: Step("kubectl deepseek logs {job} {n}--rank all --tail 40"),
    Reason.WAITING_FOR_STORE: Step("kubectl deepseek logs {job} {n}--rank all --tail 40"),
    Reason.STORE_REFUSED: Step(_SUSPEND.replace("SWITCH", "true"), "correct the Secret or the bucket's policy"),
    Reason.RUN_OWNED: Step("kubectl get dsj --all-namespaces"),
    Reason.RUN_OWNED_ELSEWHERE: Step("kubectl {n}annotate dsj {job} {takeover}=UID"),
    Reason.RUN_HAS_CHECKPOINTS: Step(_AGAIN, "choose another spec.checkpoint.run"),
    Reason.CONTRACT_DIFFERS: Step(_AGAIN, "choose another spec.checkpoint.run"),
    Reason.MEMORY_TIER_TOO_SMALL: Step(_AGAIN, "raise or remove spec.checkpoint.memory.sizeLimit"),
    Reason.RANK_FAILED: Step(_FAILED_LOG),
    Reason.RANK_KILLED: Step(_FAILED_LOG),
    Reason.RANK_STOPPED: Step(_FAILED_LOG),
    Reason.AGENT_RESTARTED: Step(_FAILED_LOG),
    Reason.POD_FAILED: Step(_DESCRIBE),
    Reason.POD_EVICTED: Step("kubectl {n}get events --field-selector reason=Evicted"),
    Reason.NODE_LOST: Step("kubectl describe node {node}"),
    Reason.STALLED: Step("kubectl deepseek logs {job} {n}--rank all --tail 40"),
    Reason.HANG: Step("kubectl deepseek logs {job} {n}--rank all --tail 40"),
    Reason.WATCHDOG_OFF: Step(_AGAIN, 'add the label {watchdog}: "true" to the file'),
    Reason.RESTART_BUDGET_SPENT: Step(_FAILED_LOG),
    Reason.CRASH_LOOP: Step(_FAILED_LOG),
    Reason.CHECKPOINTS_LOST: Step(_AGAIN, "bring the store back, or choose another spec.checkpoint.run to start anew"),
    Reason.STARTUP_DEADLINE: Step(_DESCRIBE),
    Reason.ACTIVE_DEADLINE: Step(_AGAIN, "raise spec.runPolicy.activeDeadlineSeconds"),
    Reason.SUSPENDED: Step(_SUSPEND.replace("SWITCH", "false")),
}

QUIET = frozenset(Reason) - frozenset(STEPS)
"""Nothing to do but to wait."""


def next_step(reason: str, namespace: str, job: str, node: str | None = None) -> Step | None:
    """None when waiting is all there is to do."""
    step = next((step for known, step in STEPS.items() if known == reason), None)
    if step is None:
        return None
    names = {
        "n": "" if namespace == "default" else f"-n {namespace} ",
        "job": job,
        "label": LABEL_JOB,
        "watchdog": LABEL_WATCHDOG,
        "takeover": ANNOTATION_TAKE_OVER,
        "node": node or "NODE",
    }
    return Step(step.command.format(**names), step.first.format(**names))
