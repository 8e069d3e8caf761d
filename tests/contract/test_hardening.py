"""The operator's pod: asks for nothing that it does not need, is told what it reads.

Read from install.yaml, which is rendered from the chart.
"""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all((ROOT / "deploy/install.yaml").read_text()))
(DEPLOYMENT,) = [document for document in DOCUMENTS if document["kind"] == "Deployment"]
POD: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def test_one_operator_at_a_time() -> None:
    assert DEPLOYMENT["spec"]["replicas"] == 1 and DEPLOYMENT["spec"]["strategy"] == {"type": "Recreate"}


def test_the_pod_passes_the_restricted_pod_security_standard() -> None:
    context = CONTAINER["securityContext"]
    assert POD["securityContext"]["runAsNonRoot"] is True and POD["securityContext"]["runAsUser"] == 65532
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["allowPrivilegeEscalation"] is False and context["capabilities"] == {"drop": ["ALL"]}
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & set(POD)
    assert all(set(volume) <= {"name", "emptyDir"} for volume in POD["volumes"])


def test_the_root_file_system_is_read_only() -> None:
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] is True
    assert [mount["mountPath"] for mount in CONTAINER["volumeMounts"]] == ["/tmp"]


def test_probes_ask_the_metrics_port() -> None:
    ports = {port["name"] for port in CONTAINER["ports"]}
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert CONTAINER[probe]["httpGet"] == {"path": path, "port": "metrics"} and "metrics" in ports


def test_no_image_is_pulled_by_a_moving_tag() -> None:
    assert CONTAINER["imagePullPolicy"] == "IfNotPresent"
    assert CONTAINER["image"].rpartition(":")[2] not in ("", "latest", "dev")


def test_the_operator_reads_what_the_chart_sets() -> None:
    source = (ROOT / "operator/ciuic_operator/settings.py").read_text()
    for entry in CONTAINER["env"]:
        assert f'"{entry["name"]}"' in source, entry["name"]
