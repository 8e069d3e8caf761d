"""DeepSpeed ZeRO stage 3 around the model: settings, optimizer, engine. Called by the loop once per attempt."""

import importlib
from typing import Any

import deepspeed
import deepspeed.ops
import torch
from deepspeed.runtime import compiler

from ciuic_api.deepspeed_config import Fp16, OffloadDevice
from ciuic_api.training import Training

from .device import Device
from .groups import parameter_groups
from .initialise import check, initialise
from .model import build_model, choose_expert_path, reset_buffers, transformers_config

_BUCKET_ELEMENTS = 200_000_000
IMPORTED_ON_FIRST_USE = (
    "deepspeed.comm.mori",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "torch._subclasses.schema_check_mode",
)
BETAS = (0.9, 0.95)
EPSILON = 1e-8


def settings(training: Training, dtype: torch.dtype, device: Device) -> dict[str, Any]:
    """The ds_config. Accumulation and learning rate are ours: DeepSpeed's own counters and schedulers stay unused."""
    bucket = min(_BUCKET_ELEMENTS, training.model.parameters())
    given = training.deepspeed.passed_through() if training.deepspeed else {}
    return {
        **given,
        "train_micro_batch_size_per_gpu": training.micro_batch_size,
        "managed_gradient_accumulation": False,
        "gradient_clipping": training.gradient_clipping,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # its kernels are compiled on the machine; torch has fused ones
        "bf16": {"enabled": dtype == torch.bfloat16},
        "fp16": _fp16(training) | {"enabled": dtype == torch.float16},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": not device.is_cpu,
            "reduce_bucket_size": bucket,
            "stage3_prefetch_bucket_size": bucket if not device.is_cpu else 0,
            "stage3_param_persistence_threshold": 0,  # no parameter is replicated: one rule for all of them
            "memory_efficient_linear": False,  # recomputation by layer already drops the gathered weights
            "leaf_module": {"classes": ["DeepseekV3DecoderLayer"]},  # gathered as one, as it is recomputed as one
            **given.get("zero_optimization", {}),
        },
    }


def _fp16(training: Training) -> dict[str, Any]:
    """The loss scale: what is given, or DeepSpeed's defaults."""
    given = training.deepspeed.fp16 if training.deepspeed else None
    return (given or Fp16()).model_dump(mode="json")


def build_engine(training: Training, device: Device, dtype: torch.dtype) -> Any:
    """A fresh, initialised and checked engine. All ranks call it together."""
    preload()
    config = settings(training, dtype, device)
    model_config = transformers_config(training.model, training.sequence_length)
    model_config._experts_implementation = choose_expert_path(model_config, device.torch, dtype)
    # DeepSpeed would compile a shared-memory all-reduce here that only inference uses
    deepspeed.ops.__compatible_ops__ = {}
    deepspeed.init_distributed(device.backend, dist_init_required=False)
    with deepspeed.zero.Init(config_dict_or_path=config):  # its own dtype argument is ignored where fp16 is missing
        model = build_model(model_config)
    reset_buffers(model, device.torch)
    initialise(model, training.seed)
    check(model, device.torch, dtype)
    engine, *_ = deepspeed.initialize(model=model, optimizer=_optimizer(model, training), config=config)
    _create_moments(engine.optimizer)
    return engine


def preload() -> None:
    """Import what DeepSpeed imports on first use, so that ranks forked afterwards need not.

    Stage 3 imports the Muon optimizer, used or not, and Muon's torch.compile decorators import inductor: 2 s.
    """
    original = compiler.compile
    compiler.compile = lambda: lambda function: function
    try:
        for name in IMPORTED_ON_FIRST_USE:
            importlib.import_module(name)
    finally:
        compiler.compile = original


def _optimizer(model: Any, training: Training) -> torch.optim.Optimizer:
    """With optimizer offload it updates on the host, where only the fused kernels are fast."""
    zero = training.deepspeed.zero_optimization if training.deepspeed else None
    offloads = bool(zero and zero.offload_optimizer and zero.offload_optimizer.device is OffloadDevice.CPU)
    groups = parameter_groups(model, training)
    return torch.optim.AdamW(groups, lr=0.0, betas=BETAS, eps=EPSILON, fused=offloads or None)


def _create_moments(optimizer: Any) -> None:
    """AdamW's state as its first step would create it: the size of a checkpoint is the same from the start."""
    for flat in optimizer.fp32_partitioned_groups_flat:
        optimizer.optimizer.state[flat] = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(flat, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(flat, requires_grad=False),
        }
