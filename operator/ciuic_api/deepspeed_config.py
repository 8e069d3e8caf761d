"""`training.deepspeed`: a DeepSpeed configuration as people have it. Each key is mapped, passed through, or refused by name.

Read by the trainer and the CRD. Names are DeepSpeed's own. What is not declared here is refused by the API server.
"""

import enum
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator

from .schema import Schema, bounded, cel, rules

ZERO = "training.deepspeed.zero_optimization"
REFUSED = {
    "train_batch_size": "it follows from micro-batch, accumulation and ranks; remove it",
    "optimizer": "it is AdamW; remove it and set training.learningRate.peak and training.weightDecay",
    "scheduler": "remove it and set training.learningRate",
    "activation_checkpointing": "every layer is recomputed in the backward pass anyway; remove it",
    "communication_data_type": "gradients are reduced in fp32; remove it",
    "data_types": "gradients are accumulated in fp32; remove it",
    "checkpoint": "checkpoints are those of spec.checkpoint; remove it",
    "elasticity": "a job has the ranks that spec.nodes says; remove it",
    "amp": "remove it and enable bf16 or fp16",
}
"""Keys that DeepSpeed knows and that would do nothing or harm here."""

_ANYTHING: Any = Field(json_schema_extra={"type": "object", "x-kubernetes-preserve-unknown-fields": True})


def _size(key: str, remedy: str) -> Any:
    """DeepSpeed takes 5e8 for a whole number, and so do we."""
    return bounded(f"{ZERO}.{key}", 0, 1e12, remedy)


class Precision(enum.StrEnum):
    AUTO = "auto"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


class DeepSpeedSchema(Schema):
    model_config = ConfigDict(alias_generator=None)


class OffloadDevice(enum.StrEnum):
    NONE = "none"
    CPU = "cpu"


class Offload(DeepSpeedSchema):
    """Where it lies while it is not needed."""

    device: OffloadDevice = OffloadDevice.NONE
    """`cpu`: in the memory of the host."""
    pin_memory: bool = False
    """Host memory that is never swapped: faster to copy, and needs the locked memory."""


class ZeroOptimization(DeepSpeedSchema):
    """Passed through, on top of what the trainer sets."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!has(self.stage) || self.stage == 3",
                f"{ZERO}.stage must be 3: the checkpoints are those of stage 3; set it",
            )
        )
    )

    stage: int = 3
    """ZeRO stage."""
    offload_param: Offload | None = None
    """Of the parameters that compute."""
    offload_optimizer: Offload | None = None
    """Of fp32 parameters and moments; they are updated on the host then."""
    overlap_comm: bool | None = None
    """Reduce gradients while the backward pass goes on."""
    contiguous_gradients: bool | None = None
    """Copy gradients into one buffer as they are made."""
    reduce_bucket_size: Annotated[float | None, _size("reduce_bucket_size", "5e8 is common")] = None
    """Elements reduced at a time."""
    stage3_prefetch_bucket_size: Annotated[float | None, _size("stage3_prefetch_bucket_size", "5e8 is common")] = None
    """Elements gathered ahead."""
    stage3_param_persistence_threshold: Annotated[
        float | None, _size("stage3_param_persistence_threshold", "1e4 is common")
    ] = None
    """Parameters of fewer elements stay gathered."""
    stage3_max_live_parameters: Annotated[float | None, _size("stage3_max_live_parameters", "1e9 is common")] = None
    """Elements gathered at most."""
    stage3_max_reuse_distance: Annotated[float | None, _size("stage3_max_reuse_distance", "1e9 is common")] = None
    """Elements within which a parameter that is used again stays gathered."""
    sub_group_size: Annotated[float | None, _size("sub_group_size", "1e9 is common")] = None
    """Elements updated at a time."""


class Fp16(DeepSpeedSchema):
    """Mapped to training.precision: fp16, with a loss scale that finds its own way. A step whose gradients overflow is skipped
    and lowers the scale; that is no bad step."""

    enabled: bool = False
    """Replaces training.precision."""
    loss_scale: Annotated[float, bounded("training.deepspeed.fp16.loss_scale", 0, 1e9, "0 means dynamic")] = 0
    """0: dynamic."""
    initial_scale_power: Annotated[
        int, bounded("training.deepspeed.fp16.initial_scale_power", 0, 32, "16 is common")
    ] = 16
    """The first scale is 2 to this power."""
    loss_scale_window: Annotated[
        int, bounded("training.deepspeed.fp16.loss_scale_window", 1, 10**9, "1000 is common")
    ] = 1000
    """Steps without overflow after which the scale doubles."""
    hysteresis: Annotated[int, bounded("training.deepspeed.fp16.hysteresis", 1, 1000, "2 is common")] = 2
    """Overflows after which the scale halves."""
    min_loss_scale: Annotated[float, bounded("training.deepspeed.fp16.min_loss_scale", 1, 1e9, "1 is common")] = 1
    """Below it the scale never falls."""


class Bf16(DeepSpeedSchema):
    """Mapped to training.precision: bf16."""

    enabled: bool = False
    """Replaces training.precision."""


class Fp8Format(enum.StrEnum):
    HYBRID = "HYBRID"
    E4M3 = "E4M3"


class Fp8(DeepSpeedSchema):
    """DeepSpeed itself takes this block and does nothing with it. This version has no FP8 either: it computes in bf16, and the
    job's log says so at the start of every attempt."""

    enabled: bool = False
    """Asks for FP8 in the large linear layers."""
    format: Fp8Format = Fp8Format.HYBRID
    """`HYBRID`: e4m3 forward, e5m2 backward."""


class DeepSpeed(DeepSpeedSchema):
    """A DeepSpeed configuration. Its keys win over the fields of training that say the same."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            *(cel(f"!has(self.{key})", f"training.deepspeed.{key} is refused: {why}") for key, why in REFUSED.items()),
            cel(
                "!has(self.fp16) || !self.fp16.enabled || !has(self.bf16) || !self.bf16.enabled",
                "training.deepspeed.fp16.enabled and bf16.enabled must not both be true; disable one of the two",
            ),
            cel(
                "!has(self.fp8) || !self.fp8.enabled || (has(self.bf16) && self.bf16.enabled)",
                "training.deepspeed.fp8.enabled needs bf16.enabled: what is not FP8 is bf16; enable it",
            ),
        )
    )

    train_micro_batch_size_per_gpu: Annotated[
        int | None,
        bounded("training.deepspeed.train_micro_batch_size_per_gpu", 1, 65536, "4 is a start"),
    ] = None
    """Replaces training.microBatchSize."""
    gradient_accumulation_steps: Annotated[
        int | None,
        bounded("training.deepspeed.gradient_accumulation_steps", 1, 65536, "1 is a start"),
    ] = None
    """Replaces training.gradientAccumulation."""
    gradient_clipping: Annotated[
        float | None,
        bounded("training.deepspeed.gradient_clipping", 0, 1e6, "1.0 is common"),
    ] = None
    """Replaces training.gradientClipping."""
    fp16: Fp16 | None = None
    bf16: Bf16 | None = None
    fp8: Fp8 | None = None
    zero_optimization: ZeroOptimization | None = None
    steps_per_print: Annotated[int | None, bounded("training.deepspeed.steps_per_print", 1, 10**9, "2000 is rare")] = (
        None
    )
    """Passed through: steps from one line of DeepSpeed's own to the next; the trainer's line comes every step."""
    wall_clock_breakdown: bool | None = None
    """Passed through: DeepSpeed's timers, which wait for the device at every step."""
    train_batch_size: float | None = None
    """Refused."""
    optimizer: Annotated[dict[str, Any] | None, _ANYTHING] = None
    """Refused."""
    scheduler: Annotated[dict[str, Any] | None, _ANYTHING] = None
    """Refused."""
    activation_checkpointing: Annotated[dict[str, Any] | None, _ANYTHING] = None
    """Refused."""
    communication_data_type: Annotated[str | None, Field(max_length=64)] = None
    """Refused."""
    data_types: Annotated[dict[str, Any] | None, _ANYTHING] = None
    """Refused."""
    checkpoint: Annotated[dict[str, Any] | None, _ANYTHING] = None
    """Refused."""
    elasticity: Annotated[dict[str, Any] | None, _ANYTHING] = None
    """Refused."""
    amp: Annotated[dict[str, Any] | None, _ANYTHING] = None
    """Refused."""

    @model_validator(mode="after")
    def _refuse(self) -> Self:
        for key, why in REFUSED.items():
            if getattr(self, key) is not None:
                raise ValueError(f"training.deepspeed.{key} is refused: {why}")
        return self

    def precision(self) -> Precision | None:
        """What the blocks ask for, if they do."""
        if self.fp16 is not None and self.fp16.enabled:
            return Precision.FP16
        return Precision.BF16 if self.bf16 is not None and self.bf16.enabled else None

    def passed_through(self) -> dict[str, Any]:
        """What goes into DeepSpeed's configuration as it is."""
        kept: dict[str, Any] = self.model_dump(
            mode="json", exclude_none=True, include={"zero_optimization", "steps_per_print", "wall_clock_breakdown"}
        )
        zero = kept.get("zero_optimization", {})
        for key, value in zero.items():
            if isinstance(value, float):
                zero[key] = int(value)
        return kept
