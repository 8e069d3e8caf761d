"""What to type next, for each reason that wants somebody to do something. Pure; shown below the reason by `status`."""

from ciuic_api.names import ANNOTATION_TAKE_OVER, LABEL_JOB, LABEL_WATCHDOG
from ciuic_api.reasons import Reason

from .snapshot import Snapshot

_DESCRIBE = "kubectl {n}describe pods -l {label}={job}"
_FAILED_LOG = "kubectl deepseek logs {job} {n}--rank failed --tail 40"
_AGAIN = "kubectl {n}delete dsj {job} && kubectl {n}apply -f FILE"

STEPS: dict[Reason, str] = {
    Reason.INVALID_SPEC: f"change the field, then {_AGAIN}",
    Reason.WATCHDOG_CONTRADICTION: "kubectl {n}label dsj {job} {watchdog}-",
    Reason.UNSCHEDULABLE: _DESCRIBE,
    Reason.IMAGE_UNAVAILABLE: _DESCRIBE,
    Reason.POD_CONFIG_ERROR: _DESCRIBE,
    Reason.WAITING_FOR_OLD_PODS: "kubectl {n}get pods -l {label}={job}",
    Reason.PREFLIGHT_FAILED: "kubectl deepseek logs {job} {n}--rank all --tail 40",
    Reason.WAITING_FOR_STORE: "kubectl deepseek logs {job} {n}--rank all --tail 40",
    Reason.STORE_REFUSED: "kubectl {n}get dsj {job} -o jsonpath='{{.spec.checkpoint}}'",
    Reason.RUN_OWNED: "kubectl get dsj --all-namespaces",
    Reason.RUN_OWNED_ELSEWHERE: "kubectl {n}annotate dsj {job} {takeover}=UID",
    Reason.RUN_HAS_CHECKPOINTS: f"choose another spec.checkpoint.run, then {_AGAIN}",
    Reason.CONTRACT_DIFFERS: f"choose another spec.checkpoint.run, then {_AGAIN}",
    Reason.MEMORY_TIER_TOO_SMALL: f"raise or remove spec.checkpoint.memory.sizeLimit, then {_AGAIN}",
    Reason.RANK_FAILED: _FAILED_LOG,
    Reason.RANK_KILLED: _FAILED_LOG,
    Reason.RANK_STOPPED: _FAILED_LOG,
    Reason.AGENT_RESTARTED: _FAILED_LOG,
    Reason.POD_FAILED: _DESCRIBE,
    Reason.POD_EVICTED: "kubectl {n}get events --field-selector reason=Evicted",
    Reason.NODE_LOST: "kubectl describe node {node}",
    Reason.WATCHDOG_OFF: f'add the label {{watchdog}}: "true" to the file, then {_AGAIN}',
    Reason.RESTART_BUDGET_SPENT: _FAILED_LOG,
    Reason.CRASH_LOOP: _FAILED_LOG,
    Reason.CHECKPOINTS_LOST: f"bring the store back, or choose another spec.checkpoint.run to start anew, then {_AGAIN}",
    Reason.STARTUP_DEADLINE: _DESCRIBE,
    Reason.ACTIVE_DEADLINE: f"raise spec.runPolicy.activeDeadlineSeconds, then {_AGAIN}",
    Reason.SUSPENDED: """kubectl {n}patch dsj {job} --type merge -p '{{"spec":{{"runPolicy":{{"suspend":false}}}}}}'""",
}

QUIET = frozenset(Reason) - frozenset(STEPS)
"""Nothing to do but to wait."""


def next_step(reason: str, job: Snapshot, node: str | None = None) -> str | None:
    """The command, or a short sentence that ends in one; None when waiting is all there is to do."""
    step = next((step for known, step in STEPS.items() if known == reason), None)
    if step is None:
        return None
    return step.format(
        n="" if job.namespace == "default" else f"-n {job.namespace} ",
        job=job.name,
        label=LABEL_JOB,
        watchdog=LABEL_WATCHDOG,
        takeover=ANNOTATION_TAKE_OVER,
        node=node or "NODE",
    )
