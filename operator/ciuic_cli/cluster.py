"""Every call of the tool to the API server. Used by the commands; knows nothing of how things are shown."""

import json
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config

from ciuic_api import GROUP, PLURAL, VERSION
from ciuic_api.names import CONTAINER, LABEL_JOB

from .errors import CliError, NotFound, Refused, Unreachable

Json = dict[str, Any]
FIELD_MANAGER = "kubectl-deepseek"
CALL_SECONDS = 10.0
JOBS = f"/apis/{GROUP}/{VERSION}"
PATHS = {
    ("ciuic.io/v1alpha1", "DeepSeekJob"): (JOBS, PLURAL),
    ("v1", "ConfigMap"): ("/api/v1", "configmaps"),
    ("v1", "Secret"): ("/api/v1", "secrets"),
}
"""What `submit` can apply: a job and what it reads."""
TYPED_PATCH = "failed to create typed patch object"


class Cluster:
    def __init__(self, api: Any, namespace: str) -> None:
        self._api = api
        self.namespace = namespace

    def job(self, name: str) -> Json:
        try:
            return self._json("GET", f"{JOBS}/namespaces/{self.namespace}/{PLURAL}/{name}")
        except NotFound as error:
            self._say_if_not_installed()
            raise NotFound(
                f"there is no DeepSeekJob {name} in namespace {self.namespace};"
                " `kubectl get deepseekjobs --all-namespaces` lists them"
            ) from error

    def jobs(self) -> list[Json]:
        try:
            return list(self._json("GET", f"{JOBS}/namespaces/{self.namespace}/{PLURAL}")["items"])
        except NotFound:
            self._say_if_not_installed()
            raise

    def pods(self, job: str) -> list[Json]:
        query = {"labelSelector": f"{LABEL_JOB}={job}"}
        return list(self._json("GET", f"/api/v1/namespaces/{self.namespace}/pods", query)["items"])

    def log_lines(
        self, pod: str, follow: bool = False, previous: bool = False, tail: int | None = None
    ) -> Iterator[str]:
        """Lines of the trainer container, without their line ends. With `follow` until the container ends."""
        query = {"container": CONTAINER, "follow": str(follow).lower(), "previous": str(previous).lower()}
        if tail is not None:
            query["tailLines"] = str(tail)
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
        response = self._call("GET", path, query, limited=not follow)
        pending = b""
        try:
            for chunk in response.stream(16384):
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace")
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(f"the log of pod {pod} broke off: {error}") from error
        finally:
            response.release_conn()
        if pending:
            yield pending.decode(errors="replace")

    def apply(self, document: Json, force: bool = False) -> tuple[bool, tuple[str, ...]]:
        """Server-side apply. Returns whether the object is new, and the server's warnings."""
        root, plural = PATHS[document["apiVersion"], document["kind"]]
        name = urllib.parse.quote(document["metadata"]["name"])
        path = f"{root}/namespaces/{self.namespace}/{plural}/{name}"
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict", "force": str(force).lower()}
        try:
            response = self._call("PATCH", path, query, document, "application/apply-patch+yaml")
        except NotFound as error:
            if plural == PLURAL:
                self._say_if_not_installed()
            raise NotFound(
                f"there is no namespace {self.namespace}; `kubectl create namespace {self.namespace}` makes it"
            ) from error
        warnings = response.headers.getlist("Warning")
        response.drain_conn()
        # A warning header is `299 - "text"`.
        return response.status == 201, tuple(w.split('"', 1)[-1].rstrip('"') for w in warnings)

    def _say_if_not_installed(self) -> None:
        try:
            self._json("GET", JOBS)
        except NotFound as error:
            raise NotFound(
                "this cluster does not know DeepSeekJobs; install the chart first:"
                " helm install deepseekjob charts/deepseekjob -n deepseekjob-system --create-namespace"
            ) from error

    def _json(self, method: str, path: str, query: dict[str, str] | None = None) -> Json:
        response = self._call(method, path, query or {})
        try:
            return dict(json.loads(response.data))
        finally:
            response.release_conn()

    def _call(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: Json | None = None,
        content_type: str = "application/json",
        limited: bool = True,
    ) -> urllib3.BaseHTTPResponse:
        """The response with its body not read yet. `limited`: give up when no byte comes for a while."""
        headers = {"Accept": "application/json", "Content-Type": content_type}
        prepared = self._api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        timeout = (CALL_SECONDS, CALL_SECONDS if limited else None)
        try:
            response: urllib3.BaseHTTPResponse = self._api.call_api(*prepared, _request_timeout=timeout).response
        except (urllib3.exceptions.HTTPError, OSError) as error:
            host = self._api.configuration.host
            raise Unreachable(f"the API server at {host} does not answer ({_root_cause(error)})") from error
        if response.status >= 400:
            raise _error(response.status, response.data)
        return response


def connect(kubeconfig: Path | None, context: str | None, namespace: str | None) -> Cluster:
    """By the usual rules: --kubeconfig, KUBECONFIG, ~/.kube/config, the pod's own account."""
    configuration = client.Configuration()
    configuration.retries = False
    file = str(kubeconfig) if kubeconfig else None
    try:
        contexts, current = config.list_kube_config_contexts(file)
        config.load_kube_config(file, context=context, client_configuration=configuration)
    except config.ConfigException as error:
        if file or context:
            raise CliError(f"the kubeconfig cannot be used: {error}; check --kubeconfig and --context") from error
        return _in_pod(configuration, namespace)
    chosen = next((c for c in contexts if c["name"] == context), current)
    own = (chosen or {}).get("context", {}).get("namespace")
    return Cluster(client.ApiClient(configuration), namespace or own or "default")


def _in_pod(configuration: Any, namespace: str | None) -> Cluster:
    try:
        config.load_incluster_config(client_configuration=configuration)
        own = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace").read_text().strip()
    except (config.ConfigException, OSError) as error:
        raise CliError("there is no kubeconfig; set KUBECONFIG or give --kubeconfig") from error
    return Cluster(client.ApiClient(configuration), namespace or own)


def _error(status: int, body: bytes) -> CliError:
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = {}
    message = str(parsed.get("message") or body.decode(errors="replace") or f"HTTP {status}")
    if status == 404:
        return NotFound(message)
    if message.startswith(TYPED_PATCH):  # a 500 for what is the file's mistake
        field, _, what = message.rpartition(": ")
        return Refused(f"{field.rpartition(': ')[2].lstrip('.')}: {what}; correct or remove it", code=422)
    if status >= 500:
        return Unreachable(f"the API server failed: {message}")
    if status == 401:
        return Refused("the API server does not accept your credentials; log in again", code=status)
    causes = tuple(
        (str(cause.get("field", "")), str(cause.get("message", "")))
        for cause in (parsed.get("details") or {}).get("causes") or ()
    )
    return Refused(message, causes, status)


def _root_cause(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    text = str(reason if isinstance(reason, BaseException) else error)
    return text.rpartition(": ")[2] or text
