"""Labels, annotations, derived names and their lengths. Used by the manifests, the observer, the hub and the CLI."""

LABEL_WATCHDOG = "ciuic.io/watchdog"
ANNOTATION_CHECKPOINT_PATH = "ciuic.io/checkpoint-path"
ANNOTATION_TAKE_OVER = "ciuic.io/take-over-run"
ANNOTATION_HUB = "ciuic.io/hub"
"""Of a rank pod: the address and the authority that its agent was told, as the operator's own say them."""

LABEL_JOB = "ciuic.io/job"
LABEL_JOB_UID = "ciuic.io/job-uid"
LABEL_SLOT = "ciuic.io/slot"
LABEL_INCARNATION = "ciuic.io/incarnation"

CONTAINER = "trainer"
"""The container of a rank pod that holds the agent and its ranks. A podTemplate refines it by this name."""

MAX_JOB_NAME = 50
"""`<job>-<slot>-<incarnation>` must stay a DNS label of 63 characters: 4 digits of slot, 6 of incarnation, 2 dashes."""

PROTOCOL_ENV = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "CIUIC_AGENT_CONFIG",
)
"""Environment names that the protocol owns: a podTemplate that sets one is refused."""


def pod_name(job: str, slot: int, incarnation: int) -> str:
    return f"{job}-{slot}-{incarnation}"


def token_audience(namespace: str, name: str, uid: str) -> str:
    """The audience of a rank pod's token: names one job object, so that no other job's pod can speak for it."""
    return f"deepseekjob/{namespace}/{name}/{uid}"


def default_run(namespace: str, name: str) -> str:
    return f"{namespace}/{name}"
