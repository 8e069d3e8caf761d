"""What `submit` says of a file, and of the server's refusals."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from ciuic_cli.errors import CliError, Refused
from ciuic_cli.submitting import explain, read

ROOT = Path(__file__).resolve().parents[3]
JOB: dict[str, Any] = {
    "apiVersion": "ciuic.io/v1alpha1",
    "kind": "DeepSeekJob",
    "metadata": {"name": "tiny"},
    "spec": {"nodes": 2, "training": {"steps": 10}, "checkpoint": {"path": "s3://ckpt/x"}},
}
SECRET: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3"}}


def text(*documents: Any) -> str:
    return yaml.safe_dump_all(documents)


def changed(**spec: Any) -> dict[str, Any]:
    body = copy.deepcopy(JOB)
    body["spec"].update(spec)
    return body


@pytest.mark.parametrize("file", ["deepseekjob.yaml", "tiny.yaml", "own-script.yaml"])
def test_the_examples_pass_without_a_warning(file: str) -> None:
    submission = read((ROOT / "deploy/examples" / file).read_text(), file)
    assert submission.warnings == () and len(submission.jobs) == 1


def test_what_a_job_reads_is_applied_first() -> None:
    assert [d["kind"] for d in read(text(JOB, SECRET), "f").documents] == ["Secret", "DeepSeekJob"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("a: 1\nb: [", "f line 2 is no YAML"),
        ("- 1", "f holds a document that is no Kubernetes object"),
        (text(SECRET), "f holds no DeepSeekJob; `kubectl apply -f f` applies other things"),
        (text(JOB, {**SECRET, "kind": "Pod"}), "apply the Pod with kubectl"),
        (text({**JOB, "apiVersion": "ciuic.io/v1"}), "apiVersion is 'ciuic.io/v1'; write ciuic.io/v1alpha1"),
        (text({**JOB, "metadata": {}}), "metadata.name of the DeepSeekJob is missing"),
        (
            text({**JOB, "metadata": {"name": "n" * 51}}),
            "metadata.name has 51 characters and must not have more than 50",
        ),
        (text({**JOB, "spec": None}), "spec is missing"),
        (text(changed(nodes="many")), "f: spec.nodes is 'many': input should be a valid integer"),
        (text(changed(nodes=None)), "f: spec.nodes is None: input should be a valid integer"),
        (text(changed(accelerator="tpu")), "spec.accelerator is 'tpu': input should be 'nvidia', 'ascend'"),
        (text(changed(training={})), "f: spec.training.steps is missing"),
    ],
)
def test_mistakes_that_need_no_server(content: str, sentence: str) -> None:
    with pytest.raises(CliError) as refusal:
        read(content, "f")
    assert sentence in str(refusal.value)


def test_all_mistakes_at_once() -> None:
    with pytest.raises(CliError) as refusal:
        read(text(changed(nodes="many", accelerator="tpu")), "f")
    assert len(str(refusal.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("spec", "warning"),
    [
        (
            {"training": {"steps": 1, "model": {"hidenSize": 8}}},
            "spec.training.model.hidenSize is a field that this tool does not know; did you mean hiddenSize?",
        ),
        ({"node": 2}, "spec.node is a field that this tool does not know; did you mean nodes?"),
        ({"runPolicy": {"zzz": 1}}, "spec.runPolicy.zzz is a field that this tool does not know"),
    ],
)
def test_unknown_fields_are_warned_of(spec: dict[str, Any], warning: str) -> None:
    """Not refused: the cluster may be newer than the tool, and refuses them itself where it is not."""
    assert read(text(changed(**spec)), "f").warnings == (warning,)


def test_the_label_without_the_policy() -> None:
    """As Kubernetes 1.37 answered with the policy removed."""
    body = {**JOB, "metadata": {"name": "tiny", "labels": {"ciuic.io/checkpoint-path": "s3://my-bucket/ckpts"}}}
    error = Refused(
        'DeepSeekJob.ciuic.io "tiny" is invalid: metadata.labels: Invalid value',
        (("metadata.labels", 'Invalid value: "s3://my-bucket/ckpts": a valid label must be an empty string or ...'),),
        422,
    )
    told = explain(error, body)
    assert "a URL is no legal label value" in told and "lacks the chart's admission policy" in told
    assert yaml.safe_load(told.partition("Write instead:\n\n")[2]) == {
        "spec": {"checkpoint": {"path": "s3://my-bucket/ckpts"}}
    }


@pytest.mark.parametrize(
    ("causes", "told"),
    [
        (
            [("spec.nodes", "Invalid value: -1: nodes must be from 1 to 4096; it is the number of rank pods")],
            "spec.nodes is -1: nodes must be from 1 to 4096; it is the number of rank pods",
        ),
        (
            [("spec", "Invalid value: exactly one of training and command must be given: training for x")],
            "exactly one of training and command must be given: training for x",
        ),
        (
            [
                ("spec.nodes", "Required value"),
                ("<nil>", "Invalid value: null: some validation rules were not checked because the object was invalid"),
            ],
            "spec.nodes is missing",
        ),
        (
            [("", "ValidatingAdmissionPolicy 'a' with binding 'b' denied request: label x must be y; write z")],
            "label x must be y; write z",
        ),
    ],
)
def test_the_servers_refusals_in_plain_words(causes: list[tuple[str, str]], told: str) -> None:
    assert explain(Refused("the whole message", tuple(causes), 422), JOB) == told


def test_a_conflict_names_field_and_owner() -> None:
    causes = ((".spec.runPolicy.suspend", 'conflict with "kubectl-patch" using ciuic.io/v1alpha1'),)
    assert explain(Refused("Apply failed", causes, 409), JOB) == (
        "spec.runPolicy.suspend was last set by kubectl-patch; use --force-conflicts to set it all the same"
    )


def test_forbidden() -> None:
    told = explain(Refused('deepseekjobs.ciuic.io "tiny" is forbidden: User "me" cannot patch', (), 403), JOB)
    assert told.startswith("you may not do this: ")
