"""The commands from their words to their exit codes, against a cluster that is a dictionary."""

import copy
import io
import json
from pathlib import Path
from typing import Any

import pytest
import urllib3
from typer.testing import CliRunner

from ciuic_cli import __main__ as main
from ciuic_cli.cluster import Cluster
from ciuic_cli.errors import CliError, NotFound, Refused, Unreachable
from unit.cli.recordings import load


class Api:
    """What Cluster needs of the Kubernetes client: answers by method and path."""

    class configuration:
        host = "https://api:6443"

    def __init__(self, answers: dict[str, tuple[int, Any]]) -> None:
        self.answers = answers
        self.requests: list[tuple[str, str, Any]] = []

    def param_serialize(self, method: str, path: str, **parts: Any) -> tuple[Any, ...]:
        return method, path, parts

    def call_api(self, method: str, path: str, parts: Any, _request_timeout: Any) -> Any:
        self.requests.append((method, path, parts))
        status, body = self.answers.get(f"{method} {path}", (404, {"message": f"{path} not found"}))
        if status == 0:
            raise urllib3.exceptions.ProtocolError("Connection aborted.", ConnectionRefusedError("refused"))

        class Answer:
            response = urllib3.HTTPResponse(
                body=io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode()),
                status=status,
                headers={"Warning": '299 - "take care"'} if method == "PATCH" else {},
                preload_content=False,
            )

        return Answer


JOBS = "/apis/ciuic.io/v1alpha1"
TINY = f"{JOBS}/namespaces/x/deepseekjobs/tiny"
PODS = "/api/v1/namespaces/x/pods"


def answers(name: str, **status: Any) -> dict[str, tuple[int, Any]]:
    found = load(name)
    job = copy.deepcopy(found["job"])
    job["status"].update(status)
    return {
        f"GET {TINY}": (200, job),
        f"GET {JOBS}/namespaces/x/deepseekjobs": (200, {"items": [job]}),
        f"GET {PODS}": (200, {"items": found["pods"]}),
        f"GET {JOBS}": (200, {}),
    }


def run(monkeypatch: pytest.MonkeyPatch, api: Api, *words: str) -> Any:
    monkeypatch.setattr("ciuic_cli.cluster.connect", lambda *_: Cluster(api, "x"))
    monkeypatch.setattr(main, "LOOK_SECONDS", 0.0)
    return CliRunner().invoke(main.app, words)


def test_status_of_one_and_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    one = run(monkeypatch, Api(answers("complete")), "status", "tiny")
    assert one.exit_code == 0 and "120 of 120" in one.stdout
    every = run(monkeypatch, Api(answers("complete")), "status")
    assert every.exit_code == 0 and every.stdout.startswith("JOB ")


@pytest.mark.parametrize(("state", "code"), [("Complete", 0), ("Failed", 1)])
def test_watch_ends_with_the_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: str, code: int
) -> None:
    """A look that gets no answer is not the end."""
    api = Api(answers("running"))
    looks = 0
    original = api.call_api

    def call(method: str, path: str, parts: Any, _request_timeout: Any) -> Any:
        nonlocal looks
        if path == TINY:
            looks += 1
            api.answers |= answers("running", state=state) if looks == 3 else {}
            if looks == 2:
                raise urllib3.exceptions.ProtocolError("refused")
        return original(method, path, parts, _request_timeout)

    api.call_api = call  # type: ignore[method-assign]
    result = run(monkeypatch, api, "status", "tiny", "--watch")
    assert result.exit_code == code
    assert looks == 3
    assert "Running" in result.stdout and state in result.stdout


def test_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    log = b"[agent] slot 0 of 2\n[rank 0] step 1\n[rank 1] no\n[rank 0] end without a newline"
    api = Api(answers("running") | {f"GET {PODS}/tiny-0-0/log": (200, log)})
    result = run(monkeypatch, api, "logs", "tiny")
    assert result.stdout == "[rank 0] step 1\n[rank 0] end without a newline\n"


def test_submit_applies_by_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(
        "apiVersion: ciuic.io/v1alpha1\nkind: DeepSeekJob\nmetadata: {name: tiny}\nspec: {nodes: 1, command: [a]}\n"
    )
    api = Api({f"PATCH {TINY}": (201, {})})
    result = run(monkeypatch, api, "submit", str(file))
    assert result.exit_code == 0 and "deepseekjob tiny created in namespace x" in result.stdout
    ((_, _, parts),) = api.requests
    assert dict(parts["query_params"]) == {
        "fieldManager": "kubectl-deepseek", "fieldValidation": "Strict", "force": "false",
    }  # fmt: skip
    assert parts["header_params"]["Content-Type"] == "application/apply-patch+yaml"


def test_submit_into_another_namespace_than_the_file_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(
        "apiVersion: ciuic.io/v1alpha1\nkind: DeepSeekJob\nmetadata: {name: tiny, namespace: y}\nspec: {nodes: 1, command: [a]}\n"
    )
    result = run(monkeypatch, Api({}), "submit", str(file), "-n", "x")
    assert isinstance(result.exception, CliError)
    assert "the file says namespace y, the command line x; make them equal" in str(result.exception)


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    [
        ({f"GET {JOBS}": (200, {})}, NotFound, "there is no DeepSeekJob tiny in namespace x"),
        ({}, NotFound, "this cluster does not know DeepSeekJobs; install the chart first: helm install"),
        ({f"GET {TINY}": (0, None)}, Unreachable, "the API server at https://api:6443 does not answer"),
        ({f"GET {TINY}": (503, {"message": "etcd is away"})}, Unreachable, "the API server failed: etcd is away"),
        ({f"GET {TINY}": (401, {"message": "Unauthorized"})}, Refused, "does not accept your credentials; log in again"),
        ({f"GET {TINY}": (403, {"message": "you cannot get"})}, Refused, "you cannot get"),
    ],
)  # fmt: skip
def test_errors_are_sentences(given: dict[str, tuple[int, Any]], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        Cluster(Api(given), "x").job("tiny")


def test_an_unknown_field_comes_as_a_500_and_is_told_as_a_mistake() -> None:
    """As Kubernetes 1.37 answers a server-side apply."""
    message = (
        "failed to create typed patch object (/tiny; ciuic.io/v1alpha1, Kind=DeepSeekJob):"
        " .spec.training.model.hidenSize: field not declared in schema"
    )
    body = {"apiVersion": "ciuic.io/v1alpha1", "kind": "DeepSeekJob", "metadata": {"name": "tiny"}}
    with pytest.raises(
        Refused, match=r"^spec\.training\.model\.hidenSize: field not declared in schema; correct or remove it$"
    ):
        Cluster(Api({f"PATCH {TINY}": (500, {"message": message})}), "x").apply(body)


def test_the_servers_warnings_are_shown() -> None:
    body = {"apiVersion": "ciuic.io/v1alpha1", "kind": "DeepSeekJob", "metadata": {"name": "tiny"}}
    assert Cluster(Api({f"PATCH {TINY}": (200, {})}), "x").apply(body) == (False, ("take care",))


def test_main_prints_an_error_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def connect(*_: Any) -> Cluster:
        raise CliError("there is no kubeconfig; set KUBECONFIG")

    monkeypatch.setattr("ciuic_cli.cluster.connect", connect)
    monkeypatch.setattr("sys.argv", ["kubectl-deepseek", "status", "tiny"])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 1


def test_history(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, Api(answers("complete")), "history", "tiny")
    assert result.exit_code == 0 and "RankKilled" in result.stdout and "restarts 1 (" in result.stdout
