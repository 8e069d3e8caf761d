"""The two DeepSpeed configurations that the articles print, to the letter. Used by tests of the API and of the trainer."""

import json
from typing import Any

FP8_BLOCK: dict[str, Any] = json.loads(
    '{"fp16": {"enabled": false}, "bf16": {"enabled": true}, "fp8": {"enabled": true, "format": "HYBRID"},'
    ' "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}'
)
FP16_BLOCK: dict[str, Any] = json.loads(
    '{"fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,'
    ' "min_loss_scale": 1}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},'
    ' "overlap_comm": true, "contiguous_gradients": true, "reduce_bucket_size": 5e8, "stage3_prefetch_bucket_size": 5e8,'
    ' "stage3_param_persistence_threshold": 1e4}, "steps_per_print": 2000, "wall_clock_breakdown": false}'
)
