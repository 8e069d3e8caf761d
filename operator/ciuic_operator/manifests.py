"""Rank pods as plain dicts. Pure: used by the execution to create them, by golden tests, and by the planner for sizes."""

import copy
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from ciuic_api import API_VERSION, KIND, agent_config, names
from ciuic_api.accelerators import VENDORS
from ciuic_api.agent_config import AgentConfig, StoreConfig
from ciuic_api.checkpointing import Checkpoint
from ciuic_api.contract import contract
from ciuic_api.job import Prefork
from ciuic_api.pod_settings import CacheMedium, HugePages, RdmaMode
from ciuic_api.schema import quantity_bytes

from .model import Job, PodBody

GRACE_SECONDS = 30
"""For ranks to write a last checkpoint on TERM."""
TERMINATION_GRACE_SECONDS = 60
"""Of the pod: the ranks' grace and as much again for the upload."""
TOLERATION_SECONDS = 10
TOKEN_SECONDS = 3600
MEMORY_BUFFERS = 3
"""Two alternate, one is pinned while an upload reads it."""
SHARD_OVERHEAD_BYTES = 2 * 1024**2
"""Buffers, optimizer steps, random states and headers of one rank; measured below 1 MiB for the tiny model."""
MARKER_BYTES = 16 * 1024**2
"""Of the volume in pods without checkpoints of ours: the agent notes there which attempt it started."""


@dataclass(frozen=True, kw_only=True)
class Platform:
    """What rank pods must know of the operator and its cluster."""

    hub_url: str
    hub_ca_pem: str
    cluster: str

    @property
    def hub(self) -> str:
        """Where agents connect and whom they trust, in one word to compare by."""
        return f"{self.hub_url}#{hashlib.sha256(self.hub_ca_pem.encode()).hexdigest()[:12]}"


def shard_bytes(job: Job) -> int:
    """Estimate of one rank's shard: fp32 parameters and two moments, 12 bytes per parameter, split over the world."""
    if job.spec.training is None:
        return 0
    return 12 * job.spec.training.model.parameters() // job.spec.world_size + SHARD_OVERHEAD_BYTES


def memory_tier_bytes(job: Job) -> int:
    """Size of the memory tier's volume of one pod; 0 without the built-in trainer."""
    checkpoint = job.spec.checkpoint
    if job.spec.training is None or checkpoint is None:
        return 0
    if checkpoint.memory.size_limit is not None:
        return quantity_bytes(checkpoint.memory.size_limit)
    return MEMORY_BUFFERS * shard_bytes(job) * job.spec.ranks_per_node


def memory_tier_problem(job: Job) -> str | None:
    """A sentence when the volume does not hold two shards of every rank, below which nothing can be kept safely."""
    needed = 2 * shard_bytes(job) * job.spec.ranks_per_node
    given = memory_tier_bytes(job)
    if job.spec.training is None or given >= needed:
        return None
    return (
        f"checkpoint.memory.sizeLimit is {given // 2**20} MiB, but two shards of each of the pod's"
        f" {job.spec.ranks_per_node} ranks need {-(-needed // 2**20)} MiB; raise it or remove it"
    )


def store_config(namespace: str, name: str, checkpoint: Checkpoint | None) -> StoreConfig | None:
    if checkpoint is None or checkpoint.path is None:
        return None
    bucket, _, prefix = checkpoint.path.removeprefix("s3://").partition("/")
    run = checkpoint.run or names.default_run(namespace, name)
    return StoreConfig(
        bucket=bucket,
        prefix="/".join(part for part in (prefix.strip("/"), run) if part),
        endpoint=checkpoint.s3.endpoint,
        region=checkpoint.s3.region,
        path_style=checkpoint.s3.path_style,
    )


def pod_template_hash(job: Job) -> str:
    """Of what CEL cannot compare exactly: the operator says when it differs from what the pods were made of."""
    text = json.dumps([job.spec.pod_template, job.spec.image], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def rank_pod(job: Job, slot: int, incarnation: int, platform: Platform) -> PodBody:
    """The pod of one slot. What the podTemplate gives is merged over it; what the protocol owns is set last."""
    vendor = VENDORS[job.spec.accelerator]
    container: dict[str, Any] = {
        "name": names.CONTAINER,
        "image": job.spec.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "ciuic_trainer.agent"],
        "env": _environment(job),
        "resources": _resources(job, vendor.resource),
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "hub-token", "mountPath": agent_config.TOKEN_PATH.rsplit("/", 1)[0], "readOnly": True},
        ],
    }
    pod: PodBody = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "annotations": {
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                "sidecar.istio.io/inject": "false",
            },
        },
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": TERMINATION_GRACE_SECONDS,
            "tolerations": [
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS}
                for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
            ],
            "containers": [container],
            "volumes": [
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": job.spec.memory.shm}},
                {"name": "hub-token", "projected": {"sources": [{"serviceAccountToken": _token(job)}]}},
            ],
        },
    }
    tier = memory_tier_bytes(job) or MARKER_BYTES
    volume = {"emptyDir": {"medium": "Memory", "sizeLimit": str(tier)}}
    _mount(pod, "memory-tier", agent_config.MEMORY_TIER_PATH, volume)
    _add_cache(job, pod)
    _add_rdma(job, pod)
    pod = merged(pod, job.spec.pod_template or {})
    _add_to_memory_limit(pod, tier)
    _own(job, pod, slot, incarnation, platform)
    return pod


def _token(job: Job) -> dict[str, Any]:
    audience = names.token_audience(job.namespace, job.name, job.uid)
    return {"audience": audience, "expirationSeconds": TOKEN_SECONDS, "path": agent_config.TOKEN_PATH.rsplit("/", 1)[1]}


def _environment(job: Job) -> list[dict[str, Any]]:
    env: list[dict[str, Any]] = [
        {"name": "CIUIC_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "CIUIC_NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    secret = job.spec.checkpoint.secret_name if job.spec.checkpoint else None
    if secret:
        for name, optional in (
            ("AWS_ACCESS_KEY_ID", False),
            ("AWS_SECRET_ACCESS_KEY", False),
            ("AWS_SESSION_TOKEN", True),
        ):
            reference: dict[str, Any] = {"name": secret, "key": name}
            if optional:
                reference["optional"] = True
            env.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    if job.spec.cache is not None:
        env.append({"name": agent_config.CACHE_ENV, "value": "/cache"})
    return env


def _resources(job: Job, accelerator: str | None) -> dict[str, Any]:
    amounts: dict[str, str] = {}
    if accelerator is not None:
        amounts[accelerator] = str(job.spec.ranks_per_node)
    rdma = job.spec.network.rdma
    if rdma.mode is RdmaMode.SHARED_DEVICE and rdma.resource_name:
        amounts[rdma.resource_name] = str(rdma.count)
    return {"requests": dict(amounts), "limits": dict(amounts)} if amounts else {}


def _mount(pod: PodBody, name: str, path: str, source: dict[str, Any]) -> None:
    pod["spec"]["volumes"].append({"name": name, **source})
    pod["spec"]["containers"][0]["volumeMounts"].append({"name": name, "mountPath": path})


def _add_cache(job: Job, pod: PodBody) -> None:
    cache = job.spec.cache
    if cache is None:
        return
    if cache.medium is CacheMedium.HOST_PATH:
        source: dict[str, Any] = {"hostPath": {"path": cache.path, "type": "DirectoryOrCreate"}}
    else:
        source = {"emptyDir": {"sizeLimit": cache.size} if cache.size else {}}
    _mount(pod, "cache", "/cache", source)


def _add_rdma(job: Job, pod: PodBody) -> None:
    rdma = job.spec.network.rdma
    if rdma.mode is RdmaMode.NONE:
        return
    if rdma.networks:
        pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] = rdma.networks
    # Registering memory with the HCA locks it; effective for root containers, others need the node's limit raised.
    pod["spec"]["containers"][0]["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}


def _add_to_memory_limit(pod: PodBody, tier: int) -> None:
    """A memory-backed volume counts into its container's limit: the user's limit is what the ranks may use beside it."""
    trainer = _trainer(pod)
    for kind in ("requests", "limits"):
        amounts = trainer.get("resources", {}).get(kind, {})
        if "memory" in amounts:
            amounts["memory"] = str(quantity_bytes(str(amounts["memory"])) + tier)


def _own(job: Job, pod: PodBody, slot: int, incarnation: int, platform: Platform) -> None:
    metadata = pod["metadata"]
    metadata["name"] = names.pod_name(job.name, slot, incarnation)
    metadata["namespace"] = job.namespace
    metadata.setdefault("labels", {}).update(
        {
            names.LABEL_JOB: job.name,
            names.LABEL_JOB_UID: job.uid,
            names.LABEL_SLOT: str(slot),
            names.LABEL_INCARNATION: str(incarnation),
        }
    )
    metadata.setdefault("annotations", {})[names.ANNOTATION_HUB] = platform.hub
    metadata["ownerReferences"] = [
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": job.name,
            "uid": job.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]
    # OnFailure: when the agent itself dies, the container starts again in place and the memory tier survives.
    pod["spec"]["restartPolicy"] = "OnFailure"
    env = _trainer(pod).setdefault("env", [])
    env.append({"name": agent_config.ENV, "value": agent_config.encode(_agent_config(job, incarnation, platform))})


def _trainer(pod: PodBody) -> dict[str, Any]:
    container: dict[str, Any] = next(c for c in pod["spec"]["containers"] if c["name"] == names.CONTAINER)
    return container


def _agent_config(job: Job, incarnation: int, platform: Platform) -> AgentConfig:
    spec, checkpoint = job.spec, job.spec.checkpoint
    return AgentConfig(
        namespace=job.namespace,
        job=job.name,
        job_uid=job.uid,
        cluster=platform.cluster,
        incarnation=incarnation,
        nodes=spec.nodes,
        ranks_per_node=spec.ranks_per_node,
        accelerator=str(spec.accelerator),
        hub_url=platform.hub_url,
        hub_ca_pem=platform.hub_ca_pem,
        contract=contract(spec.training, spec.world_size) if spec.training else "",
        command=tuple(spec.command or ()),
        training=spec.training.to_json() if spec.training else None,
        store=store_config(job.namespace, job.name, checkpoint),
        checkpoint_every_steps=checkpoint.every.steps if checkpoint else 0,
        memory_every_steps=checkpoint.memory.every_steps if checkpoint else 0,
        memory_tier_bytes=memory_tier_bytes(job),
        interface=spec.network.interface,
        prefork=spec.prefork is Prefork.AUTO and VENDORS[spec.accelerator].forkable,
        disable_transparent_huge_pages=spec.memory.transparent_huge_pages is HugePages.NEVER,
        grace_seconds=GRACE_SECONDS,
    )


LIST_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
}
"""Lists that are merged by a key, as the API server does for pods; all others are replaced, tolerations are added."""


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` merged onto a copy of `base`: maps by key, keyed lists by their key, the rest replaced."""
    result = copy.deepcopy(base)
    for key, value in over.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            result[key] = merged(old, value)
        elif key in LIST_KEYS and isinstance(old, list) and isinstance(value, list):
            result[key] = _merged_list(old, value, LIST_KEYS[key])
        elif key == "tolerations" and isinstance(old, list) and isinstance(value, list):
            result[key] = [*old, *copy.deepcopy(value)]
        else:
            result[key] = copy.deepcopy(value)
    return result


def _merged_list(base: list[dict[str, Any]], over: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    result = {item[key]: item for item in base}
    for item in over:
        name = item[key]
        known = result.get(name)
        # An env entry is replaced whole: a value beside a valueFrom would be refused.
        result[name] = (
            copy.deepcopy(item) if known is None or "value" in item or "valueFrom" in item else merged(known, item)
        )
    return list(result.values())
