"""Each example is a valid job, and pods can be built from it."""

import ast
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from ciuic_api import API_VERSION, KIND, names
from ciuic_api.job import JobSpec
from ciuic_api.jobstatus import JobStatus
from ciuic_api.pod_settings import HugePages, RdmaMode
from ciuic_operator.manifests import Platform, rank_pod
from ciuic_operator.model import Job

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "deploy/examples").glob("*.yaml"))
DOCUMENTS: list[tuple[str, dict[str, Any]]] = [
    (file.name, document) for file in FILES for document in yaml.safe_load_all(file.read_text())
]
JOBS = [(name, document) for name, document in DOCUMENTS if document["kind"] == KIND]


def spec_of(document: dict[str, Any]) -> JobSpec:
    """With the label's path put where the admission policy puts it."""
    path = document["metadata"].get("labels", {}).get(names.ANNOTATION_CHECKPOINT_PATH)
    spec = document["spec"]
    if path:
        spec = {**spec, "checkpoint": {**spec.get("checkpoint", {}), "path": path}}
    return JobSpec.model_validate(spec)


def example(file: str) -> JobSpec:
    (found,) = [document for name, document in JOBS if name == file]
    return spec_of(found)


def test_the_examples_are_there() -> None:
    assert {file.name for file in FILES} == {"deepseekjob.yaml", "tiny.yaml", "tiny-secret.yaml", "own-script.yaml"}


@pytest.mark.parametrize(("file", "document"), JOBS, ids=[name for name, _ in JOBS])
def test_an_example_is_a_valid_job(file: str, document: dict[str, Any]) -> None:
    """Unknown fields are refused by the models."""
    assert document["apiVersion"] == API_VERSION
    assert len(document["metadata"]["name"]) <= names.MAX_JOB_NAME
    spec = spec_of(document)
    assert (spec.training is None) == (spec.command is not None)
    assert spec.training is None or (spec.checkpoint is not None and spec.checkpoint.path is not None)


@pytest.mark.parametrize(("file", "document"), JOBS, ids=[name for name, _ in JOBS])
def test_pods_can_be_built_from_an_example(file: str, document: dict[str, Any]) -> None:
    job = Job(
        namespace="default",
        name=document["metadata"]["name"],
        uid="11111111-0000-0000-0000-000000000001",
        generation=1,
        created_at=datetime(2026, 11, 30, tzinfo=UTC),
        spec=spec_of(document),
        status=JobStatus(),
        watchdog=True,
    )
    pod = rank_pod(job, 0, 0, Platform(hub_url="wss://hub:8443/v1/agent", hub_ca_pem="", cluster="c"))
    (trainer,) = pod["spec"]["containers"]
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in trainer["volumeMounts"]} == volumes


def test_the_articles_job() -> None:
    (found,) = [document for name, document in JOBS if name == "deepseekjob.yaml"]
    assert found["metadata"]["labels"] == {
        "ciuic.io/watchdog": "true",
        "ciuic.io/checkpoint-path": "s3://my-bucket/deepseek-ckpts",
    }
    spec = spec_of(found)
    assert (spec.nodes, spec.ranks_per_node, spec.image) == (8, 8, "ciuic/deepseek-train:latest")
    assert spec.network.interface == "ib0" and spec.network.rdma.mode is RdmaMode.SHARED_DEVICE
    assert spec.memory.transparent_huge_pages is HugePages.NEVER
    assert spec.training is not None
    model = spec.training.model
    assert 15.5e9 < model.parameters() < 16.5e9
    assert model.model_fields_set == set(type(model).model_fields), "each size of the model is written down"


def test_the_secret_is_the_one_that_tiny_names() -> None:
    (secret,) = [document for name, document in DOCUMENTS if name == "tiny-secret.yaml"]
    checkpoint = example("tiny.yaml").checkpoint
    assert checkpoint is not None and checkpoint.secret_name == secret["metadata"]["name"]
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= set(secret["stringData"])


def test_the_own_script_imports_nothing_of_ours() -> None:
    (config,) = [d for name, d in DOCUMENTS if name == "own-script.yaml" and d["kind"] == "ConfigMap"]
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(config["data"]["train.py"]))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert not [name for name in imported if name.startswith("ciuic")]
    assert "torch.distributed" in imported
