"""What agents and the operator say to each other, as JSON over one WebSocket per pod.

A Report says what is so, a Directive what should be so. Both are complete each time: losing, repeating or reordering
one changes nothing. Unknown fields are ignored, so that two neighbouring versions understand each other.
"""

import enum
from typing import Literal

import msgspec

from .lineage import Attempt, CheckpointId

PATH = "/v1/agent"
HEADER_NAMESPACE = "X-Ciuic-Namespace"
HEADER_JOB = "X-Ciuic-Job"
HEADER_JOB_UID = "X-Ciuic-Job-Uid"
"""The agent names its job object in these three when it connects; they select the audience (names.token_audience) that
its token is reviewed for. The token itself goes into `Authorization: Bearer ...`, read anew from its file for each
connection. The hub answers 401 when the token does not hold, 403 when the pod is not a current one of that job, and 503
while it cannot judge; each with a sentence as text. The agent logs it and tries again after its usual pause."""
REPORT_INTERVAL_SECONDS = 1.0
DELETION_CONFIRMATION_SECONDS = 5.0
"""Slot 0's agent deletes old checkpoints only while its newest directive confirming its attempt is younger than this."""
MAX_REPORT_BYTES = 256 * 1024


RANKS_REMAIN = "RanksRemain"
"""Reason of an AgentFailure: processes of an older attempt are still there 10 s after KILL. The pod is replaced."""
AGENT_RESTARTED = "AgentRestarted"
"""Reason of an AgentFailure: the container restarted while ranks of `attempt` ran in it."""
STOPPED_EXIT_CODE = 75
"""Of a rank that ended as asked by TERM, with a last checkpoint."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of everything on the wire."""


class RankState(Message, frozen=True, kw_only=True, omit_defaults=True):
    rank: int
    phase: str = "init"
    """init | restore | compile | step | eval | checkpoint | data | exit"""
    step: int = 0
    """Completed optimizer steps."""
    micro_step: int = 0
    unmoved_seconds: float = 0.0
    exit_code: int | None = None
    """None while it lives; negative for a signal, as subprocess says it."""


class PhaseTime(Message, frozen=True, kw_only=True, omit_defaults=True):
    """How long the ranks of this pod were seen without movement in one phase, while all went well."""

    phase: str
    count: int
    p99_seconds: float


class Stack(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Where a rank is that does not move."""

    rank: int
    process_state: str = ""
    """As /proc says it: R, S, D (in the kernel, mostly disk or network storage), T (stopped), Z."""
    cpu_share: float = 0.0
    """CPU seconds per second while it was looked at; 1.0 is one core."""
    frames: tuple[str, ...] = ()
    """`file:line function` of the main thread, innermost first; empty where the rank can not answer."""


class Evidence(Message, frozen=True, kw_only=True, omit_defaults=True):
    """What was kept of a failure: of ranks that did not move, or of one that ended badly."""

    attempt: int
    number: int = 0
    """The one that the directive asked for; 0: taken unasked, because a rank ended."""
    stacks: tuple[Stack, ...] = ()
    place: str = ""
    """Where all of it can be read: an s3:// address, or empty when it could not be uploaded."""


class AgentFailure(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Why the attempt cannot go on in this pod."""

    reason: str
    message: str
    rank: int | None = None
    exit_code: int | None = None
    cause: str = ""
    """The last log line that looks like an error's own sentence, if there is one."""
    fingerprint: str = ""
    """Equal for equal failures: reason, exit code and the last error line without its numbers."""
    tail: tuple[str, ...] = ()
    """The last log lines of the rank, at most 20 here; the pod's log has the rest."""
    at_seconds_ago: float = 0.0


class PreflightProblem(Message, frozen=True, kw_only=True, omit_defaults=True):
    code: str
    message: str


class Preflight(Message, frozen=True, kw_only=True, omit_defaults=True):
    problems: tuple[PreflightProblem, ...] = ()
    versions: dict[str, str] = {}


class StoreState(enum.StrEnum):
    OK = "ok"
    UNREACHABLE = "unreachable"
    """No answer, or 5xx: worth waiting for."""
    REFUSED = "refused"
    """Wrong credentials, no such bucket, or conditional writes not supported: somebody has to act."""


class Owner(Message, frozen=True, kw_only=True, omit_defaults=True):
    uid: str
    cluster: str
    namespace: str = ""
    name: str = ""
    attempt: int = 0


class RunState(Message, frozen=True, kw_only=True, omit_defaults=True):
    """What slot 0's agent sees of the run in S3."""

    store: StoreState
    message: str = ""
    owner: Owner | None = None
    attempts: tuple[Attempt, ...] = ()
    """Attempt records found, newest 32."""
    manifests: tuple[CheckpointId, ...] = ()
    """Verified as far as a listing and heads can tell: every shard there, with its size. Newest 8 of each lineage."""
    refused: tuple[str, ...] = ()
    """Manifests that were refused, each with its reason."""
    contract: str = ""
    """Of the newest manifest, as `ciuic_api.contract` writes it; empty when there is none."""
    scanned_attempt: int = 0
    """The attempt for which the run was looked at, after the ranks of the one before had ended here: what was seen
    earlier says nothing about what a restore can use. Also set when the store did not answer."""
    claimed_attempt: int = 0
    """The attempt up to which this agent wrote OWNER.json."""


class RestoreFailure(Message, frozen=True, kw_only=True, omit_defaults=True):
    checkpoint: CheckpointId
    why: str


class Metrics(Message, frozen=True, kw_only=True, omit_defaults=True):
    """From rank 0's newest completed step."""

    step: int
    loss: float | None = None
    tokens_per_second: float | None = None
    steps_per_second: float | None = None
    eval_loss: float | None = None


class UploadState(Message, frozen=True, kw_only=True, omit_defaults=True):
    committed: CheckpointId | None = None
    """Newest manifest that this agent wrote (slot 0) in this attempt."""
    pending: int = 0
    failing_seconds: float = 0.0
    """How long uploads have been failing without a success; 0 when they do not."""
    message: str = ""


class AgentState(enum.StrEnum):
    QUIESCED = "quiesced"
    """No rank of any attempt runs here; ready to be told `run`."""
    KILLING = "killing"
    RESTORING = "restoring"
    RUNNING = "running"
    STOPPING = "stopping"
    """Told to stop gracefully: ranks write a last checkpoint, it is uploaded."""
    EXITED = "exited"
    """The ranks of `attempt` ran here and have all ended: see exit codes and failure."""


class Report(Message, frozen=True, kw_only=True, omit_defaults=True):
    boot: str
    """New with each start of the agent process."""
    sequence: int
    incarnation: int
    attempt: int
    state: AgentState
    ranks: tuple[RankState, ...] = ()
    failure: AgentFailure | None = None
    held: tuple[CheckpointId, ...] = ()
    """Complete and verified in this pod's memory tier, for all of its ranks."""
    run: RunState | None = None
    """From slot 0 only."""
    restore_failed: RestoreFailure | None = None
    preflight: Preflight | None = None
    """None until it has been made."""
    rendezvous: str | None = None
    """`address:port` at which rank 0 of `attempt` could listen, if this were slot 0."""
    phase_times: tuple[PhaseTime, ...] = ()
    evidence: Evidence | None = None
    """The newest that was kept."""
    metrics: Metrics | None = None
    upload: UploadState = UploadState()
    uploads_done: bool = False
    """After the ranks ended or stopped: everything that was to be uploaded is committed, or cannot be."""


class Restore(Message, frozen=True, kw_only=True, omit_defaults=True):
    checkpoint: CheckpointId
    tier: Literal["memory", "s3"]
    """Where this slot takes its shards from. The agent falls back from memory to S3 when the copy fails its checksum."""


class Directive(Message, frozen=True, kw_only=True, omit_defaults=True):
    attempt: int
    run: bool
    slot: int
    parent: int | None = None
    rendezvous: str = ""
    restore: Restore | None = None
    """None together with `run` means: start at step 0."""
    lineage: tuple[Attempt, ...] = ()
    """The links that lead to `attempt`, itself included once its restore is decided."""
    claim: bool = False
    """Slot 0 writes OWNER.json for this attempt."""
    take_over: str = ""
    """UID of a dead owner whose run may be taken."""
    stop: bool = False
    """Stop gracefully: TERM, last checkpoint, upload. Only for suspend."""
    grace_seconds: int = 30
    keep_last: int = 3
    """checkpoint.keep.last, which may change while the job runs; slot 0 deletes by it."""
    evidence: int = 0
    """Collect evidence under this number, once; 0: none is wanted."""
    finish: bool = False
    """All is done: the agent ends with exit code 0."""


encode = msgspec.json.Encoder().encode
decode_report = msgspec.json.Decoder(Report).decode
decode_directive = msgspec.json.Decoder(Directive).decode
