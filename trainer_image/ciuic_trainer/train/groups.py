"""The optimizer's parameter groups, and their learning rates before each step. Used by engine.py and the loop.

A group is a band of layers (ciuic_api.learning_rate), with or without weight decay: matrices decay, vectors (norms) do
not. The rate of a group needs no saving: it is computed before every step from the step, the configuration and what a
checkpoint holds anyway.
"""

import re
from typing import Any, NamedTuple

from ciuic_api.learning_rate import Band, bands, learning_rate, warmup_steps
from ciuic_api.training import Training

_LAYER = re.compile(r"^model\.layers\.(\d+)\.")


class Rates(NamedTuple):
    """Of all groups at one step."""

    lowest: float
    highest: float

    def __str__(self) -> str:
        return f"{self.highest:.3e}" if self.lowest == self.highest else f"{self.lowest:.3e} to {self.highest:.3e}"


def parameter_groups(model: Any, training: Training) -> list[dict[str, Any]]:
    """For torch.optim.AdamW, those without parameters left out."""
    layers = training.model.layers
    groups = []
    for band in bands(training.learning_rate, layers):
        for name, decay, is_matrix in (("decay", training.weight_decay, True), ("no-decay", 0.0, False)):
            chosen = [
                parameter
                for path, parameter in model.named_parameters()
                if band.first <= layer_of(path, layers) <= band.last and (len(parameter.ds_shape) > 1) == is_matrix
            ]
            warmup = warmup_steps(training.learning_rate, band, layers)
            groups.append({"name": _name(band, name), "params": chosen, "weight_decay": decay, "warmup": warmup})
    return [group for group in groups if group["params"]]


def layer_of(path: str, layers: int) -> int:
    """From 1 to `layers`; the embedding belongs to the first layer, the last norm and the head to the last one."""
    if found := _LAYER.match(path):
        return int(found[1]) + 1
    return 1 if path.startswith("model.embed_tokens.") else layers


def set_rates(engine: Any, training: Training, step: int, factor: float) -> Rates:
    """`factor` is what the controllers make of the planned rate."""
    for group in engine.optimizer.param_groups:
        planned = learning_rate(training.learning_rate, step, training.steps, group["warmup"])
        group["lr"] = planned * factor
    rates = [group["lr"] for group in engine.optimizer.param_groups]
    return Rates(min(rates), max(rates))


def _name(band: Band, decay: str) -> str:
    return f"layers-{band.first}-{band.last}/{decay}"
