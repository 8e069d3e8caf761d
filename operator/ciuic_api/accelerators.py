"""One row per accelerator vendor: what differs between them when pods are built and ranks are started."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Vendor:
    resource: str | None
    """Extended resource asked for once per rank; none on a CPU."""
    backend: str
    """torch.distributed backend."""
    device: str
    """torch device module, and DeepSpeed's DS_ACCELERATOR."""
    interface_env: tuple[tuple[str, str], ...]
    """(environment name, prefix of the value) that pin the collectives to one network interface."""
    forkable: bool = False
    """Whether a process that has imported torch for this device, and not touched it, may be forked into ranks. False where
    that was not tried."""
    plugin: str | None = None
    """Module to import before torch knows the device."""


VENDORS: dict[str, Vendor] = {
    "nvidia": Vendor(
        resource="nvidia.com/gpu",
        backend="nccl",
        device="cuda",
        forkable=True,
        interface_env=(("NCCL_SOCKET_IFNAME", "="), ("GLOO_SOCKET_IFNAME", "")),
    ),
    "ascend": Vendor(
        resource="huawei.com/Ascend910",
        backend="hccl",
        device="npu",
        interface_env=(("HCCL_SOCKET_IFNAME", "="), ("GLOO_SOCKET_IFNAME", "")),
        plugin="torch_npu",
    ),
    "cambricon": Vendor(
        resource="cambricon.com/mlu",
        backend="cncl",
        device="mlu",
        interface_env=(("CNCL_SOCKET_IFNAME", ""), ("GLOO_SOCKET_IFNAME", "")),
        plugin="torch_mlu",
    ),
    "cpu": Vendor(
        resource=None,
        backend="gloo",
        device="cpu",
        forkable=True,
        interface_env=(("NCCL_SOCKET_IFNAME", "="), ("GLOO_SOCKET_IFNAME", "")),
    ),
}
"""`=` before a name asks NCCL and HCCL for exactly that interface: `ib1` alone would also match `ib10`. Gloo takes names."""
