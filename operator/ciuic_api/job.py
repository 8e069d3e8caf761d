"""`DeepSeekJob.spec`: the single source of the CRD, its documentation, the chart's copy and the operator's validation."""

import enum
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from .accelerators import VENDORS
from .alerting import AlertRoute
from .checkpointing import Checkpoint
from .pod_settings import Cache, Memory, Network
from .pod_template import POD_TEMPLATE_SCHEMA
from .schema import Schema, bounded, cel, rules
from .training import Training
from .watching import Watchdog


class Accelerator(enum.StrEnum):
    NVIDIA = "nvidia"
    ASCEND = "ascend"
    CAMBRICON = "cambricon"
    CPU = "cpu"


class Prefork(enum.StrEnum):
    AUTO = "Auto"
    NEVER = "Never"


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
