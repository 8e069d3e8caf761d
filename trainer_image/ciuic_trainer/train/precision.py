"""The type that the model computes in: what is asked for, where the device can, and otherwise something that is said.

Used by engine.py and the loop.
"""

from typing import NamedTuple

import torch

from ciuic_api.deepspeed_config import Precision
from ciuic_api.training import Training

from .device import Device


class Chosen(NamedTuple):
    dtype: torch.dtype
    """Of weights and activations in forward and backward pass."""
    remarks: tuple[str, ...] = ()
    """What was asked for and is not so, a sentence each."""


def choose(training: Training, device: Device) -> Chosen:
    remarks = []
    dtype = _dtype(training.precision, device)
    if dtype == torch.float16 and not device.has_fp16:
        dtype = torch.bfloat16
        remarks.append(f"fp16 was asked for, which {device.torch} does not have: it is bf16, without a loss scale")
    if training.deepspeed and training.deepspeed.fp8 and training.deepspeed.fp8.enabled:
        remarks.append(
            f"fp8 ({training.deepspeed.fp8.format}) was asked for, which this version does not have: it is bf16"
        )
    return Chosen(dtype, tuple(remarks))


def _dtype(precision: Precision, device: Device) -> torch.dtype:
    match precision:
        case Precision.BF16:
            return torch.bfloat16
        case Precision.FP16:
            return torch.float16
        case Precision.FP32:
            return torch.float32
        case Precision.AUTO:
            return torch.bfloat16 if device.has_bf16 else torch.float32
