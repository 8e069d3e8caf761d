"""The calls to the API server: their form, the rights they need, and that writes need the Lease."""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from ciuic_operator import kube
from ciuic_operator.errors import LeaseLost
from ciuic_operator.kube import NODES, PODS, RULES, Kube
from ciuic_operator.transport import CALL_SECONDS, Query

POD = {"metadata": {"name": "p", "uid": "u", "resourceVersion": "1"}}
ANSWER = POD | {"metadata": POD["metadata"] | {"continue": ""}, "items": None, "status": {"authenticated": False}}
PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/.))?/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<subresource>[^/]+))?"
)


@dataclass
class Recorder:
    """A transport that answers the same to everything and remembers who asked for what."""

    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    used: set[tuple[str, str, str]] = field(default_factory=set)
    """(API group, resource with subresource, verb)."""
    seconds: list[float] = field(default_factory=list)

    async def call(
        self,
        method: str,
        path: str,
        query: Query = (),
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        seconds: float = CALL_SECONDS,
    ) -> bytes:
        self._record(method, path, body, content_type, watch=False)
        self.seconds.append(seconds)
        return msgspec.json.encode(ANSWER)

    async def lines(self, path: str, query: Query, silence_seconds: float) -> AsyncGenerator[bytes]:
        assert ("watch", "true") in query and ("allowWatchBookmarks", "true") in query
        self._record("GET", path, None, "", watch=True)
        nothing: list[bytes] = []
        for line in nothing:
            yield line

    def _record(self, method: str, path: str, body: Any, content_type: str, watch: bool) -> None:
        found = PATH.fullmatch(path)
        assert found is not None, path
        read = "watch" if watch else "get" if found["name"] else "list"
        verb = {"GET": read, "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]
        resource = found["plural"] + (f"/{found['subresource']}" if found["subresource"] else "")
        self.used.add((found["group"] or "", resource, verb))
        self.calls.append((method, path, body))
        if method == "PATCH":
            assert content_type == "application/json-patch+json"


async def all_calls(one: Kube) -> None:
    await one.get_job("team", "tiny")
    await one.list_job_keys()
    await one.write_job_status("team", "tiny", "7", {"state": "Running"})
    await one.delete_job("team", "tiny", "uid")
    for resource in (PODS, NODES):
        assert [page async for page in one.pages(resource)]
        async with aclosing(one.watch(resource, "5", 70.0)) as stream:
            assert [line async for line in stream] == []
    await one.get_pod("team", "p")
    await one.pod_warnings("team", "u")
    await one.create_pod("team", {})
    await one.delete_pod("team", "p", "u", 0)
    await one.create_event("team", {})
    await one.cluster_uid()
    await one.review_token("token", "audience")
    await one.get_secret("system", "ca")
    await one.create_secret("system", {})
    await one.get_lease(1.0)
    await one.create_lease({}, 1.0)
    await one.update_lease({}, 1.0)


async def test_the_rules_are_the_calls() -> None:
    recorder = Recorder()
    one = Kube(recorder, lambda: True, write_seconds=10.0)
    await all_calls(one)
    granted = {(rule.group, rule.resource, verb) for rule in RULES for verb in rule.verbs}
    by_kopf = {("ciuic.io", "deepseekjobs", "list"), ("ciuic.io", "deepseekjobs", "watch")}
    assert recorder.used | by_kopf == granted
    public = {name for name in vars(Kube) if not name.startswith("_")}
    assert len(public) == 18, f"a call was added: name it in all_calls as well ({sorted(public)})"


WRITES: dict[str, tuple[Any, ...]] = {
    "write_job_status": ("team", "tiny", "7", {}),
    "delete_job": ("team", "tiny", "uid"),
    "create_pod": ("team", {}),
    "delete_pod": ("team", "p", "u", None),
    "create_event": ("team", {}),
    "create_secret": ("system", {}),
}


@pytest.mark.parametrize("name", WRITES)
async def test_nothing_is_written_without_the_lease(name: str) -> None:
    recorder = Recorder()
    with pytest.raises(LeaseLost):
        await getattr(Kube(recorder, lambda: False, write_seconds=10.0), name)(*WRITES[name])
    assert recorder.calls == []
    await getattr(Kube(recorder, lambda: True, write_seconds=3.5), name)(*WRITES[name])
    assert recorder.seconds == [3.5], "no write may be under way when a successor takes the Lease"


async def test_a_status_write_replaces_the_whole_and_names_the_version() -> None:
    recorder = Recorder()
    await Kube(recorder, lambda: True, 10.0).write_job_status("team", "tiny", "7", {"state": "Running"})
    (call,) = recorder.calls
    assert call == (
        "PATCH",
        "/apis/ciuic.io/v1alpha1/namespaces/team/deepseekjobs/tiny/status",
        [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
            {"op": "add", "path": "/status", "value": {"state": "Running"}},
        ],
    )


async def test_deletions_name_the_uid_and_leave_children_to_the_collector() -> None:
    recorder = Recorder()
    one = Kube(recorder, lambda: True, 10.0)
    await one.delete_pod("team", "p", "u", 0)
    await one.delete_pod("team", "p", "u", None)
    await one.delete_job("team", "tiny", "j")
    forced, gentle, job = (body for _, _, body in recorder.calls)
    assert forced["preconditions"] == {"uid": "u"} and forced["gracePeriodSeconds"] == 0
    assert "gracePeriodSeconds" not in gentle
    assert job["preconditions"] == {"uid": "j"} and job["propagationPolicy"] == "Background"


@dataclass
class Reviewer(Recorder):
    status: dict[str, Any] = field(default_factory=dict)

    async def call(self, *args: Any, **kwargs: Any) -> bytes:
        return msgspec.json.encode({"status": self.status})


async def test_a_review_counts_only_for_its_audience() -> None:
    extra = {"authentication.kubernetes.io/pod-uid": ["u"]}
    one = Reviewer(status={"authenticated": True, "audiences": ["mine"], "user": {"username": "x", "extra": extra}})
    review = Kube(one, lambda: True, 10.0).review_token
    assert await review("t", "mine") == {"authentication.kubernetes.io/pod-uid": ("u",)}
    assert await review("t", "other") is None
    one.status = {"authenticated": True, "user": {"extra": extra}}
    assert await review("t", "mine") is None, "a server that knows no audiences says nothing about this one"
    one.status = {"authenticated": False, "error": "expired"}
    assert await review("t", "mine") is None


def test_selectors() -> None:
    assert kube._selector(PODS) == [("labelSelector", "ciuic.io/job")] and kube._selector(NODES) == []
