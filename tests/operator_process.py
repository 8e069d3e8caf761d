"""The operator as a process beside a test's API server, with exactly the rights that kube.RULES names."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from api_server import ApiServer, free_ports, start
from ciuic_operator.kube import RULES
from ciuic_operator.settings import LEASE_NAMESPACE
from waiting import eventually

RELEASE_NAMESPACE = "deepseekjob-system"
ACCOUNT = "operator"
CA_SECRET = "deepseekjob-hub-ca"
LEASE_SECONDS = 3


def grant(api: ApiServer) -> Path:
    """Makes the operator's account with its roles; returns a kubeconfig for it."""
    places = {"cluster": None, "release": RELEASE_NAMESPACE, "lease": LEASE_NAMESPACE}
    api.kubectl("create", "namespace", RELEASE_NAMESPACE)
    api.kubectl("create", "serviceaccount", ACCOUNT, "-n", RELEASE_NAMESPACE)
    for scope, namespace in places.items():
        kind = "Role" if namespace else "ClusterRole"
        rules: list[dict[str, Any]] = [
            {
                "apiGroups": [rule.group],
                "resources": [rule.resource],
                "verbs": list(rule.verbs),
                **(
                    {"resourceNames": [CA_SECRET if n == "<hub CA secret>" else n for n in rule.names]}
                    if rule.names
                    else {}
                ),
            }
            for rule in RULES
            if rule.scope == scope
        ]
        meta = {"name": f"operator-{scope}", **({"namespace": namespace} if namespace else {})}
        authorization = "rbac.authorization.k8s.io"
        role = {"apiVersion": f"{authorization}/v1", "kind": kind, "metadata": meta, "rules": rules}
        subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": RELEASE_NAMESPACE}
        binding = {
            "apiVersion": f"{authorization}/v1",
            "kind": f"{kind}Binding",
            "metadata": meta,
            "roleRef": {"apiGroup": authorization, "kind": kind, "name": meta["name"]},
            "subjects": [subject],
        }
        api.kubectl("create", "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": [role, binding]})
    token = api.kubectl("create", "token", ACCOUNT, "-n", RELEASE_NAMESPACE, "--duration=2h")
    config = json.loads(api.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token.strip()}
    path = api.kubeconfig.with_name("operator.kubeconfig")
    path.write_text(json.dumps(config))
    return path


@dataclass
class OperatorProcess:
    """One life after another of the operator of one release."""

    kubeconfig: Path
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    hub_port: int = field(default_factory=lambda: free_ports(1)[0])
    metrics_port: int = field(default_factory=lambda: free_ports(1)[0])
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        path = self.folder / "operator.log"
        return path.read_text() if path.exists() else ""

    def launch(self, **environment: str) -> None:
        assert self.process is None or self.process.poll() is not None
        inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        own = {
            "KUBECONFIG": str(self.kubeconfig),
            "PYTHONPATH": str(Path(__file__).parents[1] / "operator"),
            "CIUIC_RELEASE_NAMESPACE": RELEASE_NAMESPACE,
            "CIUIC_HUB_HOST": "127.0.0.1",
            "CIUIC_HUB_PORT": str(self.hub_port),
            "CIUIC_HUB_CA_SECRET": CA_SECRET,
            "CIUIC_METRICS_PORT": str(self.metrics_port),
            "CIUIC_LEASE_SECONDS": str(LEASE_SECONDS),
            # Of one pod: what is started again need not wait for the Lease of what was killed.
            "CIUIC_POD_UID": "pod-of-the-test",
        }
        with (self.folder / "operator.log").open("ab") as log:
            command = [sys.executable, "-m", "ciuic_operator"]
            self.process = start(command, log, inherited | own | self.environment | environment)

    async def start(self, **environment: str) -> None:
        self.launch(**environment)
        await eventually("the operator is ready", self._ready, seconds=60.0)

    async def ended(self, seconds: float = 30.0) -> int:
        process = self.process
        assert process is not None
        await eventually("the operator has ended", lambda: process.poll() is not None, seconds)
        assert process.returncode is not None
        return process.returncode

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await self.ended()

    async def stop(self) -> int:
        """As a pod is stopped; the log of a clean end holds no error."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    def fetch(self, path: str) -> tuple[int, str]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.metrics_port}{path}", timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            return 0, str(error)

    def _ready(self) -> bool:
        assert self.process is not None and self.process.poll() is None, f"the operator has ended:\n{self.log[-3000:]}"
        return self.fetch("/readyz")[0] == 200


@contextmanager
def operator_process(kubeconfig: Path, folder: Path, **environment: str) -> Iterator[OperatorProcess]:
    """Not started yet; whatever lives in the end is ended."""
    folder.mkdir(parents=True, exist_ok=True)
    made = OperatorProcess(kubeconfig=kubeconfig, folder=folder, environment=environment)
    try:
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            made.process.terminate()
            try:
                made.process.wait(15)
            except subprocess.TimeoutExpired:
                made.process.kill()
                made.process.wait()
