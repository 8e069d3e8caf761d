"""What the chart renders with which values. Needs Helm, no cluster; stands here because Helm comes with the cluster."""

import json
import subprocess
from typing import Any

import pytest
import yaml
from conftest import CHART, _binary

pytestmark = pytest.mark.e2e
RECEIVER = {"name": "oncall", "type": "slack", "secretName": "robot"}
MUTATING = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([_binary("helm"), *arguments], capture_output=True, text=True)


def render(*settings: str, release: str = "deepseekjob", capabilities: str = MUTATING) -> list[dict[str, Any]]:
    values = [word for setting in settings for word in ("--set", setting)]
    result = helm("template", release, str(CHART), "-n", "here", "--api-versions", capabilities, *values)
    assert result.returncode == 0, result.stderr
    return [document for document in yaml.safe_load_all(result.stdout) if document]


def kinds(documents: list[dict[str, Any]]) -> set[str]:
    return {document["kind"] for document in documents}


def operator_container(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (deployment,) = [document for document in documents if document["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_lint() -> None:
    result = helm("lint", "--strict", str(CHART))
    assert result.returncode == 0, result.stdout


def test_what_stays_when_the_release_goes() -> None:
    """Jobs outlive the operator, so their definition and its rules do."""
    kept = {
        document["kind"]
        for document in render()
        if document["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
    }
    assert kept == {
        "CustomResourceDefinition",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
    }


def test_switches() -> None:
    assert "CustomResourceDefinition" not in kinds(render("crds.install=false"))
    assert not {kind for kind in kinds(render("policies.install=false")) if "Admission" in kind}
    roles = [d for d in render("rbac.aggregate=false") if d["kind"] == "ClusterRole"]
    assert [role["metadata"]["name"] for role in roles] == ["here.deepseekjob"]


def test_an_older_server_gets_no_mutating_policy() -> None:
    found = kinds(render(capabilities="v1/Pod"))
    assert "ValidatingAdmissionPolicy" in found and "MutatingAdmissionPolicy" not in found


def test_values_reach_the_operator() -> None:
    container = operator_container(
        render("image.tag=dev", "hub.port=9443", "metrics.port=9090", "logLevel=DEBUG", "extraEnv.NO_PROXY=all")
    )
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert container["image"] == "ciuic/deepseekjob-operator:dev" and container["imagePullPolicy"] == "IfNotPresent"
    assert env["CIUIC_HUB_PORT"] == "9443" and env["CIUIC_METRICS_PORT"] == "9090"
    assert env["CIUIC_LOG_LEVEL"] == "DEBUG" and env["NO_PROXY"] == "all"
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {"hub": 9443, "metrics": 9090}


def test_receivers_are_told_by_name_and_their_secrets_by_files() -> None:
    documents = render(*(f"alerts.receivers[0].{key}={value}" for key, value in RECEIVER.items()))
    (deployment,) = [document for document in documents if document["kind"] == "Deployment"]
    container = operator_container(documents)
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert json.loads(env["CIUIC_ALERT_RECEIVERS"]) == [{"name": "oncall", "type": "slack", "language": "en"}]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "alerts-oncall"]
    assert mount["mountPath"] == f"{env['CIUIC_ALERTS_FOLDER']}/oncall" and mount["readOnly"]
    (volume,) = [v for v in deployment["spec"]["template"]["spec"]["volumes"] if v["name"] == "alerts-oncall"]
    assert volume["secret"]["secretName"] == "robot"
    assert volume["secret"]["optional"], "a missing robot must not keep the operator from starting"
    assert "robot" not in json.dumps(env), "secrets are files, never environment"
    assert "CIUIC_ALERT_RECEIVERS" not in json.dumps(render("alerts=null"))


def test_two_receivers_of_one_name_are_refused() -> None:
    twice = [f"alerts.receivers[{n}].{key}={value}" for n in (0, 1) for key, value in RECEIVER.items()]
    result = helm("template", "deepseekjob", str(CHART), "--set", ",".join(twice))
    assert result.returncode != 0 and "two that are called oncall" in result.stderr


def test_the_hub_is_named_as_its_service() -> None:
    documents = render(release="other")
    env = {entry["name"]: entry.get("value") for entry in operator_container(documents)["env"]}
    (service,) = [document for document in documents if document["kind"] == "Service"]
    assert env["CIUIC_HUB_HOST"] == f"{service['metadata']['name']}.here.svc"
    assert str(service["spec"]["ports"][0]["port"]) == env["CIUIC_HUB_PORT"]


def test_two_releases_share_no_object() -> None:
    """Not even in kube-system. CRD and policies belong to one of them."""

    def names(release: str) -> set[tuple[str, str, str]]:
        documents = render("crds.install=false", "policies.install=false", release=release)
        return {(d["kind"], d["metadata"].get("namespace", ""), d["metadata"]["name"]) for d in documents}

    assert not names("deepseekjob") & names("second")


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("imagee.tag=dev", "imagee"),
        ("hub.port=443", "hub/port"),
        ("logLevel=LOUD", "logLevel"),
        ("crds.install=perhaps", "crds/install"),
        ("image.pullPolicy=Sometimes", "image/pullPolicy"),
        ("alerts.receivers[0].name=oncall", "alerts/receivers/0"),
        ("alerts.receivers[0].name=On Call", "alerts/receivers/0/name"),
        ("alerts.receivers[0].type=irc", "alerts/receivers/0/type"),
    ],
)
def test_a_wrong_value_is_named(setting: str, named: str) -> None:
    result = helm("template", "deepseekjob", str(CHART), "--set", setting)
    assert result.returncode != 0 and named in result.stderr
