"""Every call of the operator to the API server, and the rights they need. Used by the parts that do I/O.

Reads are free; writes ask first whether this process still holds the Lease. A test compares RULES with the calls made
here, another with the chart's roles.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

import msgspec

from ciuic_api import GROUP, PLURAL, VERSION
from ciuic_api.names import LABEL_JOB

from .errors import LeaseLost, NotFound
from .objects import PodRecord, pod_record
from .settings import LEASE_NAME, LEASE_NAMESPACE
from .transport import CALL_SECONDS, Query, Transport

JsonObject = dict[str, Any]
PAGE = 500
WATCH_SECONDS = 290
"""The server ends a watch after this long; it is then taken up again where it ended."""
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


@dataclass(frozen=True)
class Resource:
    group: str
    version: str
    plural: str

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root, *(["namespaces", namespace] if namespace else []), self.plural]
        return "/".join(parts + [part for part in (name, subresource) if part])


JOBS = Resource(GROUP, VERSION, PLURAL)
PODS = Resource("", "v1", "pods")
NODES = Resource("", "v1", "nodes")
EVENTS = Resource("", "v1", "events")
NAMESPACES = Resource("", "v1", "namespaces")
SECRETS = Resource("", "v1", "secrets")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One line of a role, as the chart has to grant it."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    scope: Literal["cluster", "release", "lease"] = "cluster"
    """cluster: a ClusterRole; release: a Role in the release's namespace; lease: a Role in the Lease's namespace."""
    names: tuple[str, ...] = ()
    """resourceNames; `<hub CA secret>` stands for the secret's name, which the chart chooses."""


RULES = (
    Rule(group=GROUP, resource=PLURAL, verbs=("get", "list", "watch", "delete")),
    Rule(group=GROUP, resource=f"{PLURAL}/status", verbs=("patch",)),
    Rule(group="", resource="pods", verbs=("get", "list", "watch", "create", "delete")),
    Rule(group="", resource="nodes", verbs=("list", "watch")),
    Rule(group="", resource="events", verbs=("create", "list")),
    Rule(group="", resource="namespaces", verbs=("get",), names=("kube-system",)),
    Rule(group="authentication.k8s.io", resource="tokenreviews", verbs=("create",)),
    # A create cannot be limited by name: the name is not known when the right is checked.
    Rule(group="coordination.k8s.io", resource="leases", verbs=("create",), scope="lease"),
    Rule(group="coordination.k8s.io", resource="leases", verbs=("get", "update"), scope="lease", names=(LEASE_NAME,)),
    Rule(group="", resource="secrets", verbs=("create",), scope="release"),
    Rule(group="", resource="secrets", verbs=("get",), scope="release", names=("<hub CA secret>",)),
)


class Calls(Protocol):
    """What of Transport is needed here."""

    async def call(
        self,
        method: str,
        path: str,
        query: Query = (),
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        seconds: float = CALL_SECONDS,
    ) -> bytes: ...

    def lines(self, path: str, query: Query, silence_seconds: float) -> AsyncGenerator[bytes]: ...


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    next_page: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct, frozen=True):
    metadata: ListMeta
    items: tuple[msgspec.Raw, ...] | None = None
    """The server writes null for an empty list."""


class JobKey(msgspec.Struct, frozen=True, rename="camel"):
    """What a metadata list tells of one job."""

    namespace: str
    name: str
    uid: str
    resource_version: str


class _JobItem(msgspec.Struct, frozen=True):
    metadata: JobKey


class _JobPage(msgspec.Struct, frozen=True):
    metadata: ListMeta
    items: tuple[_JobItem, ...] | None = None


class PodWarning(msgspec.Struct, frozen=True, rename="camel"):
    """What the kubelet or another part of the cluster could not do for a pod."""

    reason: str = ""
    message: str = ""
    last_timestamp: datetime | None = None


class _WarningPage(msgspec.Struct, frozen=True):
    items: tuple[PodWarning, ...] | None = None


class _Review(msgspec.Struct, frozen=True):
    status: "_ReviewStatus"


class _ReviewStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    audiences: tuple[str, ...] = ()
    user: "_ReviewUser" = msgspec.field(default_factory=lambda: _ReviewUser())


class _ReviewUser(msgspec.Struct, frozen=True):
    extra: dict[str, tuple[str, ...]] = {}


_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_decode_page = msgspec.json.Decoder(Page).decode
_decode_jobs = msgspec.json.Decoder(_JobPage).decode
_decode_warnings = msgspec.json.Decoder(_WarningPage).decode
_decode_review = msgspec.json.Decoder(_Review).decode


class Kube:
    def __init__(self, transport: Transport | Calls, may_write: Callable[[], bool], write_seconds: float) -> None:
        self._transport = transport
        self._may_write = may_write
        self._write_seconds = write_seconds
        """Writes are given up after this long: none may be under way when a successor takes the Lease."""

    async def _write(
        self, method: str, path: str, body: JsonObject | list[JsonObject], content_type: str = "application/json"
    ) -> bytes:
        if not self._may_write():
            raise LeaseLost("the Lease is not held: nothing is written")
        return await self._transport.call(
            method, path, body=body, content_type=content_type, seconds=self._write_seconds
        )

    # ---- jobs

    async def get_job(self, namespace: str, name: str) -> JsonObject:
        return _decode_object(await self._transport.call("GET", JOBS.path(namespace, name)))

    async def list_job_keys(self) -> tuple[int, tuple[JobKey, ...]]:
        """The list's version and all jobs as they are now, without their bodies."""
        keys: list[JobKey] = []
        query = [("limit", str(PAGE))]
        while True:
            page = _decode_jobs(await self._transport.call("GET", JOBS.path(), query, accept=METADATA_LIST))
            keys += [item.metadata for item in page.items or ()]
            if not page.metadata.next_page:
                return int(page.metadata.resource_version), tuple(keys)
            query = [("limit", str(PAGE)), ("continue", page.metadata.next_page)]

    async def write_job_status(self, namespace: str, name: str, version: str, status: JsonObject) -> JsonObject:
        """Replaces the status; Conflict when the object is not the one with this resourceVersion any more."""
        # A merge patch would leave what is absent from the new status; naming the version makes it a precondition.
        patch: list[JsonObject] = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/status", "value": status},
        ]
        path = JOBS.path(namespace, name, "status")
        return _decode_object(await self._write("PATCH", path, patch, content_type="application/json-patch+json"))

    async def delete_job(self, namespace: str, name: str, uid: str) -> None:
        await self._write("DELETE", JOBS.path(namespace, name), _delete_options(uid))

    # ---- pods and nodes

    async def pages(self, resource: Resource) -> AsyncIterator[Page]:
        """All objects of a kind in pages; Gone when the list got too old on the way."""
        query = [("limit", str(PAGE)), *_selector(resource)]
        while True:
            page = _decode_page(await self._transport.call("GET", resource.path(), query, seconds=60.0))
            yield page
            if not page.metadata.next_page:
                return
            query = [("limit", str(PAGE)), ("continue", page.metadata.next_page), *_selector(resource)]

    def watch(self, resource: Resource, version: str, silence_seconds: float) -> AsyncGenerator[bytes]:
        query = [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", str(WATCH_SECONDS)),
            *_selector(resource),
        ]
        return self._transport.lines(resource.path(), query, silence_seconds)

    async def get_pod(self, namespace: str, name: str) -> PodRecord:
        return pod_record(await self._transport.call("GET", PODS.path(namespace, name)))

    async def create_pod(self, namespace: str, body: JsonObject) -> PodRecord:
        return pod_record(await self._write("POST", PODS.path(namespace), body))

    async def delete_pod(self, namespace: str, name: str, uid: str, grace_seconds: int | None) -> None:
        """Conflict when the name belongs to another pod by now."""
        options = _delete_options(uid)
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        await self._write("DELETE", PODS.path(namespace, name), options)

    async def pod_warnings(self, namespace: str, uid: str) -> tuple[PodWarning, ...]:
        """The warning events about a pod, in no order."""
        query = [("fieldSelector", f"involvedObject.uid={uid},type=Warning"), ("limit", str(PAGE))]
        return _decode_warnings(await self._transport.call("GET", EVENTS.path(namespace), query)).items or ()

    # ---- the rest

    async def create_event(self, namespace: str, body: JsonObject) -> None:
        await self._write("POST", EVENTS.path(namespace), body)

    async def cluster_uid(self) -> str:
        body = _decode_object(await self._transport.call("GET", NAMESPACES.path(name="kube-system")))
        return str(body["metadata"]["uid"])

    async def review_token(self, token: str, audience: str) -> dict[str, tuple[str, ...]] | None:
        """The token's extra facts, among them its pod; None when it does not hold for this audience."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        status = _decode_review(await self._transport.call("POST", TOKEN_REVIEWS.path(), body=body)).status
        # A server that ignores audiences would leave the list empty: the token is then for nobody in particular.
        if not status.authenticated or audience not in status.audiences:
            return None
        return dict(status.user.extra)

    async def get_secret(self, namespace: str, name: str) -> JsonObject | None:
        try:
            return _decode_object(await self._transport.call("GET", SECRETS.path(namespace, name)))
        except NotFound:
            return None

    async def create_secret(self, namespace: str, body: JsonObject) -> JsonObject:
        return _decode_object(await self._write("POST", SECRETS.path(namespace), body))

    # ---- the Lease itself, which has to be written before it is held

    async def get_lease(self, seconds: float) -> JsonObject | None:
        try:
            path = LEASES.path(LEASE_NAMESPACE, LEASE_NAME)
            return _decode_object(await self._transport.call("GET", path, seconds=seconds))
        except NotFound:
            return None

    async def create_lease(self, body: JsonObject, seconds: float) -> JsonObject:
        path = LEASES.path(LEASE_NAMESPACE)
        return _decode_object(await self._transport.call("POST", path, body=body, seconds=seconds))

    async def update_lease(self, body: JsonObject, seconds: float) -> JsonObject:
        path = LEASES.path(LEASE_NAMESPACE, LEASE_NAME)
        return _decode_object(await self._transport.call("PUT", path, body=body, seconds=seconds))


def _selector(resource: Resource) -> list[tuple[str, str]]:
    return [("labelSelector", LABEL_JOB)] if resource == PODS else []


def _delete_options(uid: str) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": uid},
        "propagationPolicy": "Background",
    }
