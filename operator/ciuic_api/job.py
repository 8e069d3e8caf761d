"""`DeepSeekJob.spec`: the single source of the CRD, its documentation, the chart's copy and the operator's validation."""

import enum
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from .accelerators import VENDORS
from .alerting import AlertRoute
from .names import PROTOCOL_ENV
from .schema import Quantity, Schema, bounded, cel, rules
from .training import FIXED_FIELDS, Training


class Accelerator(enum.StrEnum):
    NVIDIA = "nvidia"
    ASCEND = "ascend"
    CAMBRICON = "cambricon"
    CPU = "cpu"


class Resume(enum.StrEnum):
    AUTO = "Auto"
    NEVER = "Never"


class S3(Schema):
    """How to reach the store; what is absent is left to the AWS defaults."""

    endpoint: Annotated[
        str | None,
        Field(
            max_length=1024,
            json_schema_extra=rules(
                cel(
                    "self.startsWith('http://') || self.startsWith('https://')",
                    "checkpoint.s3.endpoint must begin with http:// or https://; write for example http://minio:9000",
                )
            ),
        ),
    ] = None
    """URL of an S3-compatible store; absent: AWS."""
    region: Annotated[str | None, Field(max_length=64)] = None
    """AWS region; absent: what the store answers to by default."""
    path_style: bool = False
    """Put the bucket into the path, as most stores outside AWS want it."""


class Every(Schema):
    """How often a checkpoint goes to S3."""

    steps: Annotated[int, bounded("checkpoint.every.steps", 1, 10**9, "1000 is common")] = 100
    """Optimizer steps from one checkpoint in S3 to the next."""


class MemoryTier(Schema):
    """Checkpoints kept in the pods' memory, from which a job resumes when its pods survive."""

    every_steps: Annotated[int, bounded("checkpoint.memory.everySteps", 1, 10**9, "10 is common")] = 10
    """Optimizer steps from one copy in memory to the next."""
    size_limit: Quantity | None = None
    """Size of the memory-backed volume of one pod; absent: three shards of every rank, computed from the model."""


class Keep(Schema):
    """Which checkpoints stay in S3."""

    last: Annotated[int, bounded("checkpoint.keep.last", 2, 1000, "the newest two are always kept")] = 3
    """Newest checkpoints kept in S3; older ones are deleted."""


class Checkpoint(Schema):
    """Where checkpoints go, how often, and what is kept. Needed with `training`."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!has(self.memory) || !has(self.memory.everySteps) || !has(self.every) || !has(self.every.steps)"
                " || self.memory.everySteps < 1 || self.every.steps % self.memory.everySteps == 0",
                "checkpoint.every.steps must be a multiple of checkpoint.memory.everySteps: uploads start from memory;"
                " change one of the two",
            )
        )
    )

    path: Annotated[
        str | None,
        Field(
            max_length=1024,
            json_schema_extra=rules(
                cel(
                    "self.matches('^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?$')",
                    "checkpoint.path must name a bucket of 3 to 63 lower-case characters;"
                    " write for example s3://my-bucket/deepseek-ckpts",
                )
            ),
        ),
    ] = None
    """`s3://bucket/prefix`. May be given by the annotation ciuic.io/checkpoint-path instead."""
    run: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=256,
            json_schema_extra=rules(
                cel(
                    "self.matches('^[A-Za-z0-9][A-Za-z0-9._/-]*$') && !self.endsWith('/')",
                    "checkpoint.run may hold letters, digits, dots, dashes, underscores and slashes, and must not end"
                    " with a slash; write for example team-a/moe-16b",
                )
            ),
        ),
    ] = None
    """What the checkpoints belong to; outlives the job object. Absent: `<namespace>/<name>`."""
    resume: Resume = Resume.AUTO
    """Never: refused when the run already has checkpoints."""
    secret_name: Annotated[str | None, Field(min_length=1, max_length=253)] = None
    """Secret of this namespace with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN, if any)."""
    s3: S3 = S3()
    every: Every = Every()
    memory: MemoryTier = MemoryTier()
    keep: Keep = Keep()


class Restarts(Schema):
    """Budget of restarts."""

    max: Annotated[int, bounded("watchdog.restarts.max", 0, 1000, "10 is common")] = 10
    """Restarts after software failures within windowSeconds; one more fails the job. Disruptions are not counted."""
    window_seconds: Annotated[int, bounded("watchdog.restarts.windowSeconds", 60, 10**8, "3600 is an hour")] = 3600
    """Over how long restarts are counted."""


class WatchdogMode(enum.StrEnum):
    ACT = "Act"
    NOTIFY = "Notify"


def _deadline(name: str) -> Any:
    return bounded(f"watchdog.deadlines.{name}", 5, 10**7, "1800 is half an hour; remove it to have it learned")


class Deadlines(Schema):
    """Seconds that all ranks may stay in one place before that is a standstill. Absent: learned from the job, as four times
    what 99 of 100 movements took and at least 30 s; before 20 movements were seen, 10 minutes for init and step and 30
    minutes for the rest."""

    init: Annotated[int | None, _deadline("init")] = None
    """Process start, process group, engine."""
    compile: Annotated[int | None, _deadline("compile")] = None
    """The first step of an attempt."""
    restore: Annotated[int | None, _deadline("restore")] = None
    """Loading a checkpoint from the memory tier."""
    step: Annotated[int | None, _deadline("step")] = None
    """One micro-step."""
    eval: Annotated[int | None, _deadline("eval")] = None
    """One evaluation."""
    checkpoint: Annotated[int | None, _deadline("checkpoint")] = None
    """One copy into the memory tier."""
    data: Annotated[int | None, _deadline("data")] = None
    """Waiting for data."""

    def of(self, phase: str) -> int | None:
        chosen: int | None = getattr(self, phase, None)
        return chosen


class Watchdog(Schema):
    """Its presence, or the label ciuic.io/watchdog: "true", turns restarts on."""

    mode: WatchdogMode = WatchdogMode.ACT
    """`Act`: ranks that hang are restarted. `Notify`: that they stand still is said, with their stacks; nothing is done.
    What has ended is restarted in both."""
    deadlines: Deadlines = Deadlines()
    restarts: Restarts = Restarts()


class RdmaMode(enum.StrEnum):
    NONE = "None"
    SHARED_DEVICE = "SharedDevice"


class Rdma(Schema):
    """RDMA devices of the rank pods."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!has(self.mode) || self.mode == 'None' || has(self.resourceName)",
                "network.rdma.resourceName is needed with mode SharedDevice; name the device plugin's resource,"
                " for example rdma/hca_shared_devices_a",
            ),
            cel(
                "(has(self.mode) && self.mode != 'None') || !has(self.resourceName)",
                "network.rdma.resourceName has no effect with mode None; set mode: SharedDevice or remove it",
            ),
        )
    )

    mode: RdmaMode = RdmaMode.NONE
    """SharedDevice: the resource of an RDMA shared device plugin, and the capability to lock memory."""
    resource_name: Annotated[str | None, Field(min_length=1, max_length=253)] = None
    """Name of the device plugin's resource, for example rdma/hca_shared_devices_a."""
    count: Annotated[int, bounded("network.rdma.count", 1, 64, "1 is enough for a shared device")] = 1
    """Units of the resource for each pod."""
    networks: Annotated[str | None, Field(min_length=1, max_length=1024)] = None
    """Value of the k8s.v1.cni.cncf.io/networks annotation: secondary networks of the pod."""


class Network(Schema):
    """How the ranks reach each other."""

    interface: Annotated[
        str | None,
        Field(
            max_length=15,
            json_schema_extra=rules(
                cel(
                    "self.matches('^[A-Za-z0-9_.@-]+$')",
                    "network.interface must be one interface name as `ip link` shows it, for example ib0",
                )
            ),
        ),
    ] = None
    """Interface for collectives, checked in every pod to exist and be up. Absent: the libraries choose."""
    rdma: Rdma = Rdma()


class Prefork(enum.StrEnum):
    AUTO = "Auto"
    NEVER = "Never"


class HugePages(enum.StrEnum):
    INHERIT = "Inherit"
    NEVER = "Never"


class Memory(Schema):
    """Memory settings of the rank pods."""

    shm: Quantity = "1Gi"
    """Size of /dev/shm; counted into the memory limit by Kubernetes when one is set."""
    transparent_huge_pages: HugePages = HugePages.INHERIT
    """Never: turned off for the training processes by prctl, whatever the node has set."""


class CacheMedium(enum.StrEnum):
    EMPTY_DIR = "EmptyDir"
    HOST_PATH = "HostPath"


class Cache(Schema):
    """A local disk for data, mounted at /cache and named to the ranks as CIUIC_CACHE_DIR."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "self.medium != 'HostPath' || has(self.path)",
                "cache.path is needed with medium HostPath; name the folder of the NVMe disk on the node",
            ),
            cel(
                "self.medium != 'EmptyDir' || !has(self.path)",
                "cache.path has no effect with medium EmptyDir; set medium: HostPath or remove it",
            ),
            cel(
                "self.medium != 'HostPath' || !has(self.size)",
                "cache.size has no effect with medium HostPath: a host folder has no limit; remove it",
            ),
        )
    )

    medium: CacheMedium = CacheMedium.EMPTY_DIR
    """EmptyDir lives as long as the pod; HostPath is a folder of the node and outlives it."""
    path: Annotated[
        str | None,
        Field(
            max_length=1024,
            json_schema_extra=rules(
                cel("self.startsWith('/')", "cache.path must be an absolute path, for example /mnt/nvme0/cache")
            ),
        ),
    ] = None
    """Folder of the node, for HostPath."""
    size: Quantity | None = None
    """Limit of the volume, for EmptyDir; absent: the node's."""


class CleanPods(enum.StrEnum):
    NONE = "None"
    RUNNING = "Running"
    ALL = "All"


class RunPolicy(Schema):
    """When the job pauses, gives up, and is cleaned away."""

    suspend: bool = False
    """Stop gracefully with a last checkpoint, and remove the pods, until it is false again."""
    startup_deadline_seconds: Annotated[
        int | None, bounded("runPolicy.startupDeadlineSeconds", 1, 10**8, "3600 gives a queue an hour")
    ] = None
    """How long the first pods may take to be ready before the job fails. Absent: for ever."""
    active_deadline_seconds: Annotated[
        int | None, bounded("runPolicy.activeDeadlineSeconds", 1, 10**8, "86400 is a day")
    ] = None
    """How long the job may take from its start. Absent: for ever."""
    ttl_seconds_after_finished: Annotated[
        int | None, bounded("runPolicy.ttlSecondsAfterFinished", 0, 10**8, "86400 keeps it a day")
    ] = None
    """When a finished job deletes itself. Absent: never."""
    clean_pods: CleanPods = CleanPods.RUNNING
    """Pods deleted when the job has ended: those still running, all, or none."""


_MAP: dict[str, Any] = {
    "type": "object",
    "maxProperties": 64,
    "additionalProperties": {"type": "string", "maxLength": 4096},
}
_ENV_ITEM: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 256}},
    "required": ["name"],
    "x-kubernetes-preserve-unknown-fields": True,
}
_CONTAINER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 63},
        "env": {"type": "array", "maxItems": 128, "items": _ENV_ITEM},
    },
    "required": ["name"],
    "x-kubernetes-preserve-unknown-fields": True,
}
_POD_SPEC: dict[str, Any] = {
    "type": "object",
    "properties": {
        "hostPID": {"type": "boolean"},
        "shareProcessNamespace": {"type": "boolean"},
        "restartPolicy": {"type": "string", "maxLength": 16},
        "containers": {"type": "array", "maxItems": 16, "items": _CONTAINER},
    },
    "x-kubernetes-preserve-unknown-fields": True,
}
_PROTOCOL_NAMES = ", ".join(f"'{name}'" for name in PROTOCOL_ENV)
POD_TEMPLATE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Refines the rank pods: metadata and pod spec are merged over what the operator builds. The container"
    " `trainer` is the one that trains; env given here wins, except names that the protocol owns.",
    "properties": {
        "metadata": {"type": "object", "properties": {"labels": _MAP, "annotations": _MAP}},
        "spec": _POD_SPEC,
    },
    "x-kubernetes-validations": [
        cel(
            "!has(self.spec) || !has(self.spec.hostPID) || !self.spec.hostPID",
            "podTemplate.spec.hostPID must not be true: the agent must be process 1 of its pod; remove it",
        ),
        cel(
            "!has(self.spec) || !has(self.spec.shareProcessNamespace) || !self.spec.shareProcessNamespace",
            "podTemplate.spec.shareProcessNamespace must not be true: the agent must be process 1; remove it",
        ),
        cel(
            "!has(self.spec) || !has(self.spec.restartPolicy)",
            "podTemplate.spec.restartPolicy is set by the operator; remove it",
        ),
        cel(
            "!has(self.spec) || !has(self.spec.containers) || self.spec.containers.all(c, !has(c.env) ||"
            f" c.env.all(e, !(e.name in [{_PROTOCOL_NAMES}])))",
            "podTemplate.spec.containers[].env must not set a name that the operator owns"
            f" ({', '.join(PROTOCOL_ENV)}); remove it",
        ),
    ],
}
"""Hand-written, because CEL cannot look into x-kubernetes-preserve-unknown-fields: what a rule reads is declared here."""


def _unchanged(dotted: str, while_suspended: bool = False) -> dict[str, str]:
    """A transition rule for one field, written at the root so that removing and adding again is seen as well."""
    owner = dotted.rpartition(".")[0]
    present = {}
    for side in ("self", "oldSelf"):
        has = f"has({side}.spec.{dotted})"
        present[side] = f"(has({side}.spec.{owner}) && {has})" if owner else has
    rule = (
        f"{present['self']} == {present['oldSelf']}"
        f" && (!{present['self']} || self.spec.{dotted} == oldSelf.spec.{dotted})"
    )
    if while_suspended:
        rule = f"({rule}) || (has(oldSelf.status) && has(oldSelf.status.state) && oldSelf.status.state == 'Suspended')"
        message = f"{dotted} may change only while the job is suspended; set runPolicy.suspend: true and wait for it"
    else:
        message = f"{dotted} can not be changed; delete the job and apply it again (it resumes from its checkpoints)"
    return cel(rule, message, field_path=".spec")


FIXED = (
    *("nodes", "ranksPerNode", "accelerator", "command", "prefork", "network", "memory", "cache"),
    *(f"training.{name}" for name in FIXED_FIELDS),
    *(f"checkpoint.{name}" for name in ("path", "run", "resume", "secretName", "s3", "every", "memory")),
)
"""Never change in a job's life."""

WHILE_SUSPENDED = (
    *("image", "podTemplate"),
    *(
        f"training.{name}"
        for field, info in Training.model_fields.items()
        if (name := info.alias or field) not in FIXED_FIELDS
    ),
)
"""Change only while the job is suspended. What is in neither list changes at any time."""

TRANSITIONS = (
    cel(
        "has(self.spec.training) == has(oldSelf.spec.training)",
        "training can not be added or removed; delete the job and apply another",
        ".spec",
    ),
    *(_unchanged(dotted) for dotted in FIXED),
    *(_unchanged(dotted, while_suspended=True) for dotted in WHILE_SUSPENDED),
)


class JobSpec(Schema):
    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "has(self.training) != has(self.command)",
                "exactly one of training and command must be given: training for the built-in trainer,"
                " command for your own script",
            ),
            cel(
                "!has(self.command) || has(self.training) || !has(self.checkpoint)",
                "checkpoint belongs to the built-in trainer; remove it: a command keeps its own checkpoints",
            ),
        )
    )

    nodes: Annotated[int, bounded("nodes", 1, 4096, "it is the number of rank pods")]
    """Rank pods, each on whatever node it fits."""
    ranks_per_node: Annotated[int, bounded("ranksPerNode", 1, 64, "it is the number of accelerators of a pod")] = 1
    """Training processes in each pod, one per accelerator."""
    accelerator: Accelerator = Accelerator.NVIDIA
    """Vendor of the devices: resource name, collective backend and environment follow from it."""
    image: Annotated[str, Field(min_length=1, max_length=1024)] = "ciuic/deepseek-train:latest"
    """Image of the rank pods: holds the agent and, with `training`, the trainer."""
    training: Training | None = None
    command: Annotated[
        tuple[Annotated[str, Field(max_length=4096)], ...] | None, Field(min_length=1, max_length=64)
    ] = None
    """A script that can start under torchrun: it finds RANK, WORLD_SIZE, MASTER_ADDR and their like."""
    prefork: Prefork = Prefork.AUTO
    """`Auto`: ranks are forked from a process of the pod that has imported torch and its like already, which saves a
    restart those seconds. A `command` is forked when it runs a script with the image's own Python. `Never`: each rank is
    a program of its own."""
    checkpoint: Checkpoint | None = None
    watchdog: Watchdog | None = None
    network: Network = Network()
    memory: Memory = Memory()
    cache: Cache | None = None
    run_policy: RunPolicy = RunPolicy()
    alerts: Annotated[tuple[AlertRoute, ...] | None, Field(max_length=8)] = None
    """Who is told in the chat when something happens to the job."""
    pod_template: Annotated[dict[str, Any] | None, Field(json_schema_extra=POD_TEMPLATE_SCHEMA)] = None

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node


assert set(VENDORS) == set(Accelerator), "each accelerator needs its row in the vendor table"
