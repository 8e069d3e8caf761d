"""Each key of a DeepSpeed configuration: mapped to a field of training, passed through, or refused by name."""

from typing import Any

import pydantic
import pytest

from ciuic_api.deepspeed_config import REFUSED, DeepSpeed
from ciuic_api.training import Training
from deepspeed_blocks import FP8_BLOCK, FP16_BLOCK


def resolved(block: dict[str, Any], **fields: Any) -> Training:
    return Training.model_validate({"steps": 5, "deepspeed": block, **fields}).resolved()


@pytest.mark.parametrize(
    ("block", "field", "value"),
    [
        ({"train_micro_batch_size_per_gpu": 7}, "micro_batch_size", 7),
        ({"gradient_accumulation_steps": 3}, "gradient_accumulation", 3),
        ({"gradient_clipping": 0.0}, "gradient_clipping", 0.0),
        ({"gradient_clipping": 0.5}, "gradient_clipping", 0.5),
        ({"bf16": {"enabled": True}}, "precision", "bf16"),
        ({"fp16": {"enabled": True}}, "precision", "fp16"),
        ({"fp16": {"enabled": False}, "bf16": {"enabled": False}}, "precision", "fp32"),
        ({}, "micro_batch_size", 9),
    ],
)
def test_keys_replace_fields(block: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(resolved(block, microBatchSize=9, precision="fp32"), field) == value


def test_without_the_block_nothing_changes() -> None:
    training = Training.model_validate({"steps": 5})
    assert training.resolved() is training


def test_what_is_passed_through() -> None:
    assert DeepSpeed.model_validate(FP8_BLOCK).passed_through() == {
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": False}}
    }
    zero = FP16_BLOCK["zero_optimization"]
    passed = DeepSpeed.model_validate(FP16_BLOCK).passed_through()
    assert passed == {"zero_optimization": zero, "steps_per_print": 2000, "wall_clock_breakdown": False}
    assert isinstance(passed["zero_optimization"]["reduce_bucket_size"], int), "DeepSpeed wants whole numbers"


@pytest.mark.parametrize("key", REFUSED)
def test_refused_keys_say_what_to_do_instead(key: str) -> None:
    value: Any = {"train_batch_size": 32, "communication_data_type": "fp32"}.get(key, {"type": "x"})
    with pytest.raises(pydantic.ValidationError, match=f"training.deepspeed.{key} is refused: .*(remove it|enable)"):
        DeepSpeed.model_validate({key: value})


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="prescale_gradients"):
        DeepSpeed.model_validate({"prescale_gradients": True})
