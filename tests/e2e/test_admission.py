"""Bad input gets a sentence that says what, where and the remedy, from the real API server at `kubectl apply`.

Nothing here needs the operator: most rows are dry runs, and the jobs that are made are suspended.
"""

import copy
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import CHART, RELEASE, RELEASE_NAMESPACE, Command, Operator
from jobs import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("policies_in_force")]

Json = dict[str, Any]
LABEL = "ciuic.io/checkpoint-path"
POLICIES = ("validatingadmissionpolicy/deepseekjob-metadata", "mutatingadmissionpolicy/deepseekjob-checkpoint-label")


def job(**spec: Any) -> Json:
    """A small valid job; a value of None removes the field."""
    fields = {
        "nodes": 2,
        "accelerator": "cpu",
        "training": {"steps": 10},
        "checkpoint": {"path": "s3://ckpt/tests"},
        "runPolicy": {"suspend": True},
        **spec,
    }
    return {
        "apiVersion": "ciuic.io/v1alpha1",
        "kind": "DeepSeekJob",
        "metadata": {"name": "bad-input"},
        "spec": {key: value for key, value in fields.items() if value is not None},
    }


def with_metadata(base: Json, **metadata: Any) -> Json:
    return {**base, "metadata": {**base["metadata"], **metadata}}


def labelled(path: str, base: Json | None = None) -> Json:
    return with_metadata(base or job(checkpoint=None), labels={LABEL: path})


def annotated(path: str, base: Json | None = None) -> Json:
    return with_metadata(base or job(checkpoint=None), annotations={LABEL: path})


def env(name: str) -> Json:
    return {"spec": {"containers": [{"name": "trainer", "env": [{"name": name, "value": "7"}]}]}}


SCRIPT: Json = {"training": None, "checkpoint": None, "command": ["python", "train.py"]}

REFUSED: dict[str, tuple[Json, str]] = {
    "negative nodes": (
        job(nodes=-1),
        "spec.nodes: Invalid value: -1: nodes must be from 1 to 4096; it is the number of rank pods",
    ),
    "nodes missing": (job(nodes=None), "spec.nodes: Required value"),
    "too many ranks": (job(ranksPerNode=65), "ranksPerNode must be from 1 to 64"),
    "command and training": (
        job(command=["python", "train.py"]),
        "exactly one of training and command must be given: training for the built-in trainer, command for your own script",
    ),
    "neither": (job(training=None), "exactly one of training and command must be given"),
    "unknown model field": (
        job(training={"steps": 10, "model": {"hidenSize": 64}}),
        'unknown field "spec.training.model.hidenSize"',
    ),
    "accelerator": (
        job(accelerator="tpu"),
        'spec.accelerator: Unsupported value: "tpu": supported values: "nvidia", "ascend"',
    ),
    "experts": (
        job(training={"steps": 10, "model": {"routedExperts": 9, "expertGroups": 2}}),
        "training.model.routedExperts must be a multiple of expertGroups; change one of the two",
    ),
    "zero expert groups": (
        job(training={"steps": 10, "model": {"expertGroups": 0}}),
        "training.model.expertGroups must be from 1 to 256",
    ),
    "s3 path without bucket": (
        job(checkpoint={"path": "s3:///ckpts"}),
        "checkpoint.path must name a bucket of 3 to 63 lower-case characters; write for example s3://my-bucket/deepseek-ckpts",
    ),
    "a local path": (job(checkpoint={"path": "/data/ckpts"}), "checkpoint.path must name a bucket"),
    "every and memory": (
        job(checkpoint={"path": "s3://ckpt/tests", "every": {"steps": 25}, "memory": {"everySteps": 10}}),
        "checkpoint.every.steps must be a multiple of checkpoint.memory.everySteps",
    ),
    "zero every": (
        job(checkpoint={"path": "s3://ckpt/tests", "memory": {"everySteps": 0}}),
        "checkpoint.memory.everySteps must be from 1 to 1000000000",
    ),
    "endpoint": (
        job(checkpoint={"path": "s3://ckpt/tests", "s3": {"endpoint": "minio:9000"}}),
        "checkpoint.s3.endpoint must begin with http:// or https://; write for example http://minio:9000",
    ),
    "no path at all": (
        job(checkpoint=None),
        "spec.checkpoint.path is missing and training needs it to survive a restart; write for example s3://my-bucket/deepseek-ckpts",
    ),
    "a command with checkpoints": (
        job(training=None, command=["python", "train.py"]),
        "checkpoint belongs to the built-in trainer; remove it: a command keeps its own checkpoints",
    ),
    "a command with the annotation": (
        annotated("s3://ckpt/tests", job(**SCRIPT)),
        'annotation ciuic.io/checkpoint-path is "s3://ckpt/tests" but checkpoints belong to the built-in trainer; remove it',
    ),
    "a command with the label": (
        labelled("s3://ckpt/tests", job(**SCRIPT)),
        "checkpoint belongs to the built-in trainer; remove it",
    ),
    "rdma without resource": (
        job(network={"rdma": {"mode": "SharedDevice"}}),
        "network.rdma.resourceName is needed with mode SharedDevice; name the device plugin's resource",
    ),
    "cache without path": (job(cache={"medium": "HostPath"}), "cache.path is needed with medium HostPath"),
    "a protocol env name": (
        job(podTemplate=env("MASTER_ADDR")),
        "podTemplate.spec.containers[].env must not set a name that the operator owns (RANK, WORLD_SIZE,",
    ),
    "hostPID": (
        job(podTemplate={"spec": {"hostPID": True}}),
        "podTemplate.spec.hostPID must not be true: the agent must be process 1 of its pod; remove it",
    ),
    "shareProcessNamespace": (
        job(podTemplate={"spec": {"shareProcessNamespace": True}}),
        "podTemplate.spec.shareProcessNamespace must not be true",
    ),
    "a job name too long": (
        with_metadata(job(), name="n" * 51),
        "metadata.name must not be longer than 50 characters: pod names are made from it; shorten it",
    ),
    "watchdog label": (
        with_metadata(job(), labels={"ciuic.io/watchdog": "yes"}),
        'label ciuic.io/watchdog must be "true" or "false", not "yes"; write ciuic.io/watchdog: "true" to turn restarts on',
    ),
    "watchdog off and on": (
        with_metadata(job(watchdog={}), labels={"ciuic.io/watchdog": "false"}),
        'label ciuic.io/watchdog is "false" but spec.watchdog, which turns restarts on, is given; remove one of the two',
    ),
    "annotation and path differ": (
        annotated("s3://other/place", job()),
        'ciuic.io/checkpoint-path is "s3://other/place" but spec.checkpoint.path is "s3://ckpt/tests"; make them equal',
    ),
    "label and path differ": (
        labelled("s3://other/place", job()),
        'ciuic.io/checkpoint-path is "s3://other/place" but spec.checkpoint.path is "s3://ckpt/tests"; make them equal',
    ),
    "label and annotation differ": (
        with_metadata(job(checkpoint=None), labels={LABEL: "s3://other/place"}, annotations={LABEL: "s3://ckpt/tests"}),
        'ciuic.io/checkpoint-path is "s3://ckpt/tests" but spec.checkpoint.path is "s3://other/place"; make them equal',
    ),
    "all three, the label differs": (
        with_metadata(job(), labels={LABEL: "s3://other/place"}, annotations={LABEL: "s3://ckpt/tests"}),
        'ciuic.io/checkpoint-path is "s3://other/place" but spec.checkpoint.path is "s3://ckpt/tests"; make them equal',
    ),
    "annotation without bucket": (
        annotated("s3://"),
        'annotation ciuic.io/checkpoint-path is "s3://" but must name a bucket of 3 to 63 lower-case characters',
    ),
    "label without bucket": (labelled("s3://"), "checkpoint.path must name a bucket"),
}

ACCEPTED: dict[str, Json] = {
    "the base job": job(),
    "a script": job(**SCRIPT),
    "the path as label": labelled("s3://my-bucket/deepseek-ckpts"),
    "the path as annotation": annotated("s3://my-bucket/deepseek-ckpts"),
    "annotation and path equal": annotated("s3://ckpt/tests", job()),
    "label and path equal": labelled("s3://ckpt/tests", job()),
    "label beside other fields of checkpoint": labelled("s3://ckpt/tests", job(checkpoint={"keep": {"last": 5}})),
    "watchdog on twice": with_metadata(job(watchdog={}), labels={"ciuic.io/watchdog": "true"}),
    "watchdog off": with_metadata(job(), labels={"ciuic.io/watchdog": "false"}),
    "the longest name": with_metadata(job(), name="n" * 50),
    "env of one's own": job(podTemplate=env("NCCL_DEBUG")),
}


@pytest.fixture(scope="module")
def policies_in_force(chart: None, kubectl: Command) -> None:
    """The API server reads new policies within some seconds of their creation."""
    _until_in_force(kubectl)


def _until_in_force(kubectl: Command) -> None:
    deadline = time.monotonic() + 60
    wrong = with_metadata(labelled("s3://ckpt/tests"), namespace="default")
    refused = with_metadata(job(checkpoint=None), namespace="default")
    while time.monotonic() < deadline:
        accepted = _dry_run(kubectl, "default", wrong).returncode == 0
        if accepted and "spec.checkpoint.path is missing" in _dry_run(kubectl, "default", refused).stderr:
            return
    pytest.fail("the admission policies were not in force 60 s after they were installed")


def _dry_run(kubectl: Command, namespace: str, body: Json) -> subprocess.CompletedProcess[str]:
    return kubectl("-n", namespace, "apply", "--dry-run=server", "-f", "-", stdin=body, check=False)


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_a_sentence(kubectl: Command, case: str) -> None:
    body, sentence = REFUSED[case]
    result = _dry_run(kubectl, "default", body)
    assert result.returncode != 0, f"accepted: {result.stdout}"
    assert sentence in result.stderr


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(kubectl: Command, case: str) -> None:
    result = _dry_run(kubectl, "default", ACCEPTED[case])
    assert result.returncode == 0, result.stderr
    assert not result.stderr, "a warning was given"


Edit = Callable[[Json], Any]


def _set(spec: Json, dotted: str, value: Any) -> None:
    *owners, name = dotted.split(".")
    for owner in owners:
        spec = spec.setdefault(owner, {})
    if value is None:
        spec.pop(name, None)
    else:
        spec[name] = value


FULL = job(
    image="ciuic/deepseek-train:dev",
    network={"interface": "eth0"},
    cache={"medium": "EmptyDir"},
    checkpoint={"path": "s3://ckpt/tests", "run": "tests/run", "secretName": "s3"},
    podTemplate={"metadata": {"labels": {"team": "a"}}},
)

FIXED = {
    "nodes": 3,
    "ranksPerNode": 2,
    "accelerator": "nvidia",
    "network.interface": "eth1",
    "memory.shm": "2Gi",
    "cache.size": "1Gi",
    "training.model.layers": 4,
    "training.data.path": "/elsewhere",
    "training.sequenceLength": 128,
    "training.seed": 43,
    "checkpoint.path": "s3://ckpt/elsewhere",
    "checkpoint.run": "tests/other",
    "checkpoint.secretName": "other",
    "checkpoint.resume": "Never",
    "checkpoint.every.steps": 200,
    "checkpoint.memory.everySteps": 5,
    "checkpoint.s3.region": "here",
}
REMOVABLE = ("cache", "checkpoint.run", "checkpoint.secretName", "network.interface")
WHILE_SUSPENDED = {
    "image": "ciuic/deepseek-train:other",
    "training.steps": 20,
    "training.learningRate.peak": 0.001,
    "podTemplate.metadata.labels.team": "b",
}
ANY_TIME = {
    "runPolicy.suspend": False,
    "runPolicy.activeDeadlineSeconds": 3600,
    "watchdog.restarts.max": 3,
    "checkpoint.keep.last": 7,
}


@pytest.fixture(scope="module")
def existing(policies_in_force: None, kubectl: Command) -> Iterator[str]:
    """A namespace with one suspended job, made with replace so that an edit is exactly what the test sends."""
    name = "admission-edits"
    kubectl("create", "namespace", name)
    kubectl("-n", name, "create", "-f", "-", stdin=FULL)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def _edit(kubectl: Command, namespace: str, *changes: tuple[str, Any]) -> subprocess.CompletedProcess[str]:
    live = json.loads(kubectl("-n", namespace, "get", "dsj", "bad-input", "-o", "json").stdout)
    body = {**FULL, "spec": copy.deepcopy(FULL["spec"])}
    for dotted, value in changes:
        _set(body["spec"], dotted, value)
    body["metadata"] = {"name": "bad-input", "resourceVersion": live["metadata"]["resourceVersion"]}
    return kubectl("-n", namespace, "replace", "--dry-run=server", "-f", "-", stdin=body, check=False)


def _group(dotted: str) -> str:
    """The field as the sentence names it: the rules stand at the first level below spec, training and checkpoint."""
    parts = dotted.split(".")
    return ".".join(parts[:2]) if parts[0] in ("training", "checkpoint") else parts[0]


@pytest.mark.parametrize("dotted", FIXED)
def test_an_immutable_field_edited(kubectl: Command, existing: str, dotted: str) -> None:
    result = _edit(kubectl, existing, (dotted, FIXED[dotted]))
    assert result.returncode != 0
    assert f"{_group(dotted)} can not be changed; delete the job and apply it again" in result.stderr


@pytest.mark.parametrize("dotted", REMOVABLE)
def test_an_immutable_field_removed(kubectl: Command, existing: str, dotted: str) -> None:
    result = _edit(kubectl, existing, (dotted, None))
    assert result.returncode != 0
    assert f"{_group(dotted)} can not be changed" in result.stderr


def test_an_immutable_field_added(kubectl: Command, namespace: str) -> None:
    """The second half of removing and adding again: the first is refused already."""
    kubectl("-n", namespace, "apply", "-f", "-", stdin=job())
    for field, value in {"cache": {"medium": "EmptyDir"}, "checkpoint.run": "tests/run"}.items():
        changed = job()
        _set(changed["spec"], field, value)
        result = kubectl("-n", namespace, "apply", "-f", "-", stdin=changed, check=False)
        assert result.returncode != 0
        assert f"{field} can not be changed" in result.stderr


def test_training_swapped_for_a_command(kubectl: Command, existing: str) -> None:
    result = _edit(kubectl, existing, ("training", None), ("checkpoint", None), ("command", ["python", "x.py"]))
    assert "training can not be added or removed; delete the job and apply another" in result.stderr


@pytest.mark.parametrize("dotted", ANY_TIME)
def test_what_may_change_at_any_time(kubectl: Command, existing: str, dotted: str) -> None:
    result = _edit(kubectl, existing, (dotted, ANY_TIME[dotted]))
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def operator_away(operator: Operator) -> Iterator[None]:
    """So that a test can say what state a job is in."""
    operator.scale(0)
    yield
    operator.scale(1)


@pytest.mark.parametrize("dotted", WHILE_SUSPENDED)
def test_what_may_change_only_while_suspended(
    kubectl: Command, namespace: str, operator_away: None, dotted: str
) -> None:
    kubectl("-n", namespace, "create", "-f", "-", stdin=FULL)
    _set_state(kubectl, namespace, "Running")
    refused = _edit(kubectl, namespace, (dotted, WHILE_SUSPENDED[dotted]))
    assert refused.returncode != 0
    assert f"{_group(dotted)} may change only while the job is suspended" in refused.stderr
    _set_state(kubectl, namespace, "Suspended")
    allowed = _edit(kubectl, namespace, (dotted, WHILE_SUSPENDED[dotted]))
    assert allowed.returncode == 0, allowed.stderr


def _set_state(kubectl: Command, namespace: str, state: str) -> None:
    patch = json.dumps({"status": {"state": state}})
    kubectl("-n", namespace, "patch", "dsj", "bad-input", "--subresource=status", "--type=merge", "-p", patch)


def test_the_checkpoint_path_can_not_move_by_annotation(kubectl: Command, namespace: str) -> None:
    kubectl("-n", namespace, "apply", "-f", "-", stdin=annotated("s3://ckpt/tests"))
    changed = kubectl("-n", namespace, "apply", "-f", "-", stdin=annotated("s3://ckpt/elsewhere"), check=False)
    assert changed.returncode != 0
    assert (
        'the checkpoint path is "s3://ckpt/tests" and can not be changed to "s3://ckpt/elsewhere";'
        " delete the job and apply it again"
    ) in changed.stderr


@pytest.mark.parametrize("how", [(), ("--server-side",)], ids=["client-side", "server-side"])
def test_the_articles_yaml_applies_and_applies_again(kubectl: Command, namespace: str, how: tuple[str, ...]) -> None:
    """The label as the article writes it."""
    body = labelled("s3://my-bucket/deepseek-ckpts")
    for _ in range(2):
        kubectl("-n", namespace, "apply", *how, "-f", "-", stdin=body)
        live = json.loads(kubectl("-n", namespace, "get", "dsj", "bad-input", "-o", "json").stdout)
        assert live["spec"]["checkpoint"]["path"] == "s3://my-bucket/deepseek-ckpts"
        assert LABEL not in live["metadata"].get("labels", {})
    moved = kubectl("-n", namespace, "apply", *how, "-f", "-", stdin=labelled("s3://my-bucket/other"), check=False)
    assert moved.returncode != 0
    assert 'ciuic.io/checkpoint-path is "s3://my-bucket/other" but spec.checkpoint.path is' in moved.stderr


def test_a_job_from_before_the_policies_can_be_deleted(kubectl: Command, namespace: str) -> None:
    """Removing the finalizer of a foreground deletion is an update, and must pass."""
    body = job()
    body["metadata"]["finalizers"] = ["tests.ciuic.io/held"]
    kubectl("-n", namespace, "create", "-f", "-", stdin=body)
    kubectl("-n", namespace, "delete", "dsj", "bad-input", "--wait=false")
    wrong = json.dumps({"metadata": {"labels": {"ciuic.io/watchdog": "yes"}}})
    kubectl("-n", namespace, "patch", "dsj", "bad-input", "--type=merge", "-p", wrong)
    kubectl(
        "-n",
        namespace,
        "patch",
        "dsj",
        "bad-input",
        "--type=json",
        "-p",
        '[{"op":"remove","path":"/metadata/finalizers"}]',
    )
    kubectl("-n", namespace, "wait", "--for=delete", "dsj/bad-input", "--timeout=30s")


@pytest.fixture
def without_label_policy(kubectl: Command, helm: Command) -> Iterator[None]:
    """As on Kubernetes before 1.36: the label is not turned into a path. Put back afterwards, by its owner: Helm."""
    kubectl("delete", "mutatingadmissionpolicybinding/deepseekjob-checkpoint-label")
    body = with_metadata(labelled("s3://ckpt/tests"), namespace="default")
    wait_until("the label is refused", lambda: _dry_run(kubectl, "default", body).returncode != 0, 60)
    yield
    helm("upgrade", RELEASE, str(CHART), "-n", RELEASE_NAMESPACE, "--reuse-values")
    _until_in_force(kubectl)


def test_submit_explains_a_refused_label(
    kubectl: Command, deepseek: Command, namespace: str, without_label_policy: None, tmp_path: Path
) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps(labelled("s3://my-bucket/deepseek-ckpts")))
    result = deepseek("submit", str(file), "-n", namespace, check=False)
    assert result.returncode == 1
    assert "refuses the label ciuic.io/checkpoint-path: a URL is no legal label value" in result.stderr
    assert "lacks the chart's admission policy" in result.stderr
    assert "      path: s3://my-bucket/deepseek-ckpts" in result.stderr


def test_submit_tells_the_same_sentences(deepseek: Command, namespace: str, tmp_path: Path) -> None:
    """The article's YAML twice; then mistakes, each in one line and without the server's wrapping."""
    file = tmp_path / "job.json"

    def submit(body: Json) -> subprocess.CompletedProcess[str]:
        file.write_text(json.dumps(body))
        return deepseek("submit", str(file), "-n", namespace, check=False)

    article = labelled("s3://my-bucket/deepseek-ckpts")
    assert "deepseekjob bad-input created" in submit(article).stdout
    assert "deepseekjob bad-input applied" in submit(article).stdout
    for spec, sentence in (
        ({"checkpoint": None, "nodes": -1}, "spec.nodes is -1: nodes must be from 1 to 4096"),
        ({"checkpoint": None, "nodes": 3}, "nodes can not be changed; delete the job and apply it again"),
        (
            {"checkpoint": None, "training": {"steps": 10, "model": {"hidenSize": 64}}},
            "spec.training.model.hidenSize: field not declared in schema; correct or remove it",
        ),
    ):
        refused = submit(labelled("s3://my-bucket/deepseek-ckpts", job(**spec)))
        assert refused.returncode == 1
        assert sentence in refused.stderr
        assert refused.stderr.count("error: ") == 1 and "admissionregistration" not in refused.stderr
