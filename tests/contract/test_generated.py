"""What is generated equals what is committed, and the CRD is as Kubernetes takes it."""

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from ciuic_api.crd import custom_resource_definition
from ciuic_api.docs import api_markdown, reasons_markdown
from ciuic_api.job import JobSpec
from ciuic_api.mutability import FIXED, WHILE_SUSPENDED
from ciuic_api.reasons import Reason

ROOT = Path(__file__).resolve().parents[2]
SCHEMA: dict[str, Any] = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def load_generator() -> ModuleType:
    """tools/ is no package on the path of the tests."""
    spec = importlib.util.spec_from_file_location("gen", ROOT / "tools/gen.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_committed_files_are_what_the_models_and_the_chart_make() -> None:
    generator = load_generator()
    assert generator.check(generator.find_helm()) == [], "run `make gen` and commit what it writes"


@pytest.fixture
def copy(tmp_path: Path) -> ModuleType:
    """A generator that works on a copy of what it reads and writes, to be broken by a test."""
    generator = load_generator()
    for path in (generator.CHART, ROOT / "docs"):
        shutil.copytree(path, tmp_path / path.relative_to(ROOT))
    for path in (generator.INSTALL, generator.LABEL_POLICY):
        (tmp_path / path.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    for name in ("ROOT", "CHART", "CRD", "INSTALL", "LABEL_POLICY"):
        setattr(generator, name, tmp_path / getattr(generator, name).relative_to(ROOT))
    return generator


def edit(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


@pytest.mark.parametrize(
    ("file", "old", "new", "seen_in"),
    [
        ("charts/deepseekjob/templates/crd.yaml", "maxLength: 1024", "maxLength: 1025", "crd.yaml"),
        ("docs/api.md", "Tokens per sample.", "Tokens.", "api.md"),
        ("docs/reasons.md", "All ranks train.", "It trains.", "reasons.md"),
        ("deploy/install.yaml", "maxLength: 1024", "maxLength: 1025", "install.yaml"),
        ("deploy/install.yaml", "replicas: 1", "replicas: 2", "install.yaml"),
        ("deploy/label-policy.yaml", "failurePolicy: Fail", "failurePolicy: Ignore", "label-policy.yaml"),
        ("charts/deepseekjob/templates/deployment.yaml", "replicas: 1", "replicas: 2", "install.yaml"),
        ("charts/deepseekjob/values.yaml", "port: 8443", "port: 8444", "install.yaml"),
    ],
)
def test_a_stale_or_edited_copy_is_seen_without_helm(
    copy: ModuleType, file: str, old: str, new: str, seen_in: str
) -> None:
    edit(copy.ROOT / file, old, new)
    assert any(seen_in in problem for problem in copy.check(None))


def test_a_change_of_the_models_needs_no_helm(copy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = json.loads(json.dumps(custom_resource_definition()).replace("it is the number of rank pods", "a number"))
    monkeypatch.setattr(copy, "custom_resource_definition", lambda: changed)
    assert {problem.split(" ")[0].rpartition("/")[2] for problem in copy.check(None)} == {"crd.yaml", "install.yaml"}
    assert copy.write(None) == []
    assert "a number" in copy.INSTALL.read_text()
    assert copy.check(None) == []


def test_a_change_of_the_chart_without_helm_says_so(copy: ModuleType) -> None:
    edit(copy.CHART / "values.yaml", "port: 8443", "port: 8444")
    assert copy.write(None) == [copy.INSTALL, copy.LABEL_POLICY]


def test_the_crd_is_small_enough_for_kubectl_apply() -> None:
    """kubectl keeps a copy in an annotation of 256 KiB at most."""
    assert len(json.dumps(custom_resource_definition())) < 200_000


def walk(node: dict[str, Any], path: str) -> Any:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from walk(node[key], f"{path}[]")


def test_each_field_of_the_spec_says_what_it_means() -> None:
    silent = [
        path
        for path, node in walk(SCHEMA["properties"]["spec"], "spec")
        if "description" not in node and path != "spec" and "podTemplate" not in path and not path.endswith("[]")
    ]
    assert silent == []


def test_all_that_rules_read_has_a_maximum() -> None:
    """Otherwise the server's cost estimate of a rule is unbounded and the CRD refused."""
    unbounded = [
        path
        for path, node in walk(SCHEMA["properties"]["spec"], "spec")
        if (node["type"] == "string" and "maxLength" not in node and "enum" not in node)
        or (node["type"] == "array" and "maxItems" not in node)
        or (isinstance(node.get("additionalProperties"), dict) and "maxProperties" not in node)
    ]
    assert unbounded == []


def test_each_message_names_field_and_remedy() -> None:
    messages = [rule["message"] for _, node in walk(SCHEMA, "") for rule in node.get("x-kubernetes-validations", ())]
    assert len(messages) > 60
    for message in messages:
        assert ";" in message or ":" in message or ", for example" in message, f"no remedy: {message}"
        assert not message.endswith("."), message


def test_fields_whose_change_is_ruled_exist() -> None:
    """A renamed field would leave its rule behind, and the server would refuse the CRD."""
    for dotted in (*FIXED, *WHILE_SUSPENDED):
        node = SCHEMA["properties"]["spec"]
        for name in dotted.split("."):
            assert name in node["properties"], dotted
            node = node["properties"][name]


def test_documentation_names_every_field_and_reason() -> None:
    api, reasons = api_markdown(), reasons_markdown()
    for path, _ in walk(SCHEMA["properties"]["spec"], "spec"):
        if "podTemplate" not in path and not path.endswith("[]") and path != "spec":
            assert f"| `{path.rpartition('.')[2]}` |" in api, path
    for reason in Reason:
        assert f"`{reason.value}`" in reasons and reason.meaning in reasons


def test_the_policy_and_the_crd_agree_on_what_a_path_is() -> None:
    path = SCHEMA["properties"]["spec"]["properties"]["checkpoint"]["properties"]["path"]
    (rule,) = path["x-kubernetes-validations"]
    pattern = rule["rule"].removeprefix("self.matches('").removesuffix("')")
    documents = list(yaml.safe_load_all((ROOT / "deploy/install.yaml").read_text()))
    (policy,) = [d for d in documents if d["kind"] == "ValidatingAdmissionPolicy"]
    assert any(f"matches('{pattern}')" in validation["expression"] for validation in policy["spec"]["validations"])


def test_a_spec_survives_the_round_trip() -> None:
    spec = JobSpec.model_validate({"nodes": 2, "training": {"steps": 5}, "checkpoint": {"path": "s3://bucket/x"}})
    assert JobSpec.model_validate(spec.to_json()) == spec
