"""`spec.network`, `spec.memory` and `spec.cache`: what the nodes give to the rank pods. Part of `job`."""

import enum
from typing import Annotated

from pydantic import ConfigDict, Field

from .schema import Quantity, Schema, bounded, cel, rules


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
