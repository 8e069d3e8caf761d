"""What must be equal for a checkpoint to fit a job, as one line of JSON that manifests keep. Used by planner and agent."""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the agent does without pydantic
    from .training import Training

NAMED = 3
VALUE_CHARACTERS = 60
WORLD_SIZE = "world size"


def contract(training: "Training", world_size: int) -> str:
    """Model, data, order of samples and world size."""
    fixed = {
        "training": {
            "model": training.model.to_json(),
            "data": training.data.to_json(),
            "sequenceLength": training.sequence_length,
            "seed": training.seed,
        },
        WORLD_SIZE: world_size,
    }
    return json.dumps(fixed, sort_keys=True, separators=(",", ":"))


def difference(theirs: str, ours: str) -> str:
    """`training.seed is 42 there and 43 here`, for the first fields that differ; empty when checkpoints fit."""
    if theirs == ours:
        return ""
    try:
        there, here = (dict(_flat(json.loads(text))) for text in (theirs, ours))
    except ValueError:
        return f"{_shown(theirs)} there can not be read"
    names = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
    told = [f"{name} is {_shown(there.get(name))} there and {_shown(here.get(name))} here" for name in names[:NAMED]]
    return "; ".join(told) + (f"; and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, one in value.items():
        yield from _flat(one, f"{name}.{key}" if name else key)


def _shown(value: object) -> str:
    return "not set" if value is None else json.dumps(value)[:VALUE_CHARACTERS]
