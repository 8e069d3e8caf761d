"""What the API server says of `spec.training` at `kubectl apply`: bad values get their sentence, good ones their defaults."""

import json
import subprocess
from typing import Any

import pytest

from api_server import ApiServer
from ciuic_api.deepspeed_config import REFUSED
from ciuic_api.training import Training
from deepspeed_blocks import FP8_BLOCK, FP16_BLOCK

REFUSED_OBJECTS = REFUSED.keys() - {"train_batch_size", "communication_data_type"}
Json = dict[str, Any]


def applied(api: ApiServer, training: Json) -> subprocess.CompletedProcess[str]:
    spec = {
        "nodes": 1,
        "accelerator": "cpu",
        "training": {"steps": 100, **training},
        "checkpoint": {"path": "s3://ckpt/x"},
    }
    job = {"apiVersion": "ciuic.io/v1alpha1", "kind": "DeepSeekJob", "metadata": {"name": "rules"}, "spec": spec}
    command = [
        api.kubectl_path,
        "--kubeconfig",
        str(api.kubeconfig),
        "create",
        "--dry-run=server",
        "-o",
        "json",
        "-f",
        "-",
    ]
    return subprocess.run(command, input=json.dumps(job), capture_output=True, text=True)


@pytest.mark.parametrize(
    ("training", "sentence"),
    [
        ({"learningRate": {"peak": 11}}, "training.learningRate.peak must be from 0 to 10"),
        ({"learningRate": {"curve": "cosine"}}, 'supported values: "Cosine", "Annealing", "Published"'),
        ({"learningRate": {"warmup": "PerLayer"}}, 'supported values: "Uniform", "LayerWise"'),
        ({"learningRate": {"curv": "Cosine"}}, 'unknown field "spec.training.learningRate.curv"'),
        ({"learningRate": {"adaptive": {"factor": 0}}}, "training.learningRate.adaptive.factor must be from 0.01 to 1"),
        (
            {"learningRate": {"adaptive": {"windowSteps": 1}}},
            "training.learningRate.adaptive.windowSteps must be from 2",
        ),
        ({"guards": {"spikeWindowSteps": 1000}}, "training.guards.spikeWindowSteps must be from 8 to 512"),
        (
            {"guards": {"spikeSigma": -1}},
            "training.guards.spikeSigma must be from 0 to 1000; 0 turns spike detection off",
        ),
        (
            {"accumulation": {"stages": [{"fromStep": 9, "factor": 2}, {"fromStep": 8, "factor": 3}]}},
            "training.accumulation.stages must stand in the order of fromStep; sort them",
        ),
        (
            {"accumulation": {"stages": [{"fromStep": 0, "factor": 2}]}},
            "training.accumulation.stages[].fromStep must be from 1",
        ),
        *(
            ({"deepspeed": {key: {"type": "x"}}}, f"training.deepspeed.{key} is refused: ")
            for key in sorted(REFUSED_OBJECTS)
        ),
        ({"deepspeed": {"train_batch_size": 32}}, "training.deepspeed.train_batch_size is refused: it follows from"),
        ({"deepspeed": {"prescale_gradients": True}}, 'unknown field "spec.training.deepspeed.prescale_gradients"'),
        ({"deepspeed": {"zero_optimization": {"stage": 2}}}, "zero_optimization.stage must be 3"),
        ({"deepspeed": {"zero_optimization": {"offload_param": {"device": "nvme"}}}}, 'values: "none", "cpu"'),
        (
            {"deepspeed": {"fp16": {"enabled": True}, "bf16": {"enabled": True}}},
            "training.deepspeed.fp16.enabled and bf16.enabled must not both be true; disable one of the two",
        ),
        ({"deepspeed": {"fp8": {"enabled": True}}}, "training.deepspeed.fp8.enabled needs bf16.enabled"),
    ],
)
def test_it_is_refused_with_a_sentence(api: ApiServer, training: Json, sentence: str) -> None:
    result = applied(api, training)
    assert result.returncode != 0 and sentence in result.stderr, result.stderr


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"learningRate": {"adaptive": {}}},
        {"accumulation": {"mode": "ByStep"}},
        {"deepspeed": FP8_BLOCK},
        {"deepspeed": FP16_BLOCK},
        {"accumulation": {"mode": "ByStep", "stages": [{"fromStep": 8, "factor": 2.5}], "rateScaling": "Linear"}},
        {"learningRate": {"curve": "Annealing", "warmup": "LayerWise", "adaptive": {"floor": 0.5}}},
    ],
)
def test_the_server_fills_in_what_the_trainer_would(api: ApiServer, training: Json) -> None:
    result = applied(api, training)
    assert result.returncode == 0, result.stderr
    assert (
        json.loads(result.stdout)["spec"]["training"] == Training.model_validate({"steps": 100, **training}).to_json()
    )
