"""The accelerator of this rank by its row of the vendor table: device, process group, seeds, threads. Used by the loop.

Nothing of a vendor is imported before its row says so.
"""

import importlib
import os
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed
import torch.utils.deterministic

from ciuic_api.accelerators import VENDORS, Vendor
from ciuic_trainer.shared.rank_env import RankEnv

from .errors import ConfigurationError

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""The watchdog judges hangs long before; this only ends a rank that nobody watches."""


@dataclass(frozen=True)
class Device:
    torch: torch.device
    module: Any
    """torch.cpu, torch.cuda, torch.npu ..."""
    backend: str

    @property
    def is_cpu(self) -> bool:
        return self.torch.type == "cpu"

    @property
    def has_bf16(self) -> bool:
        """In hardware: on a CPU bf16 works but is slower than fp32."""
        return not self.is_cpu

    @property
    def has_fp16(self) -> bool:
        """Every accelerator has; a CPU may."""
        return not self.is_cpu or bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def vendor_of(env: RankEnv) -> Vendor:
    if env.accelerator not in VENDORS:
        raise ConfigurationError(f"accelerator {env.accelerator!r} is unknown; choose one of {', '.join(VENDORS)}")
    return VENDORS[env.accelerator]


DETERMINISTIC_ENV = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Ring", "HCCL_DETERMINISTIC": "true"}
"""What the libraries of the vendors read when they are first used. A value that is there already stays."""


def open_device(env: RankEnv, *, deterministic: bool) -> Device:
    """This rank's device. Arithmetic is always deterministic where that costs little (CPU)."""
    vendor = vendor_of(env)
    os.environ["DS_ACCELERATOR"] = vendor.device  # DeepSpeed guesses otherwise, and warns
    if vendor.plugin is not None:
        importlib.import_module(vendor.plugin)
    if deterministic or vendor.device == "cpu":
        make_deterministic()
    module = torch.get_device_module(vendor.device)
    if not module.is_available():
        raise ConfigurationError(f"accelerator {env.accelerator!r}: this pod has no {vendor.device} device")
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or max(1, cores // env.local_world_size)))
    if vendor.device == "cpu":
        os.environ.setdefault("LOCAL_SIZE", str(env.local_world_size))  # DeepSpeed would start numactl every step
        return Device(torch.device("cpu"), module, vendor.backend)
    module.set_device(env.local_rank)
    return Device(torch.device(vendor.device, env.local_rank), module, vendor.backend)


def make_deterministic() -> None:
    """The same bits from the same input. An operator that has no such form ends the attempt with its name."""
    for name, value in DETERMINISTIC_ENV.items():
        os.environ.setdefault(name, value)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False


def join(env: RankEnv, device: Device) -> None:
    """The process group of all ranks."""
    torch.distributed.init_process_group(
        device.backend,
        init_method=f"tcp://{env.master_addr}:{env.master_port}",
        rank=env.rank,
        world_size=env.world_size,
        timeout=COLLECTIVE_TIMEOUT,
    )


def seed_everything(device: Device, seed: int, epoch: int, rank: int) -> None:
    """Called at the start of each epoch. Data order and initialisation do not depend on it."""
    mixed = int(np.random.SeedSequence((seed, epoch, rank)).generate_state(1)[0])
    random.seed(mixed)
    np.random.seed(mixed)
    torch.manual_seed(mixed)
    if not device.is_cpu:
        device.module.manual_seed(mixed)
