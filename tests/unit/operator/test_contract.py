"""Which checkpoints fit a job, and what is said of those that do not."""

from ciuic_api.contract import contract, difference
from ciuic_api.training import Training

OURS = contract(Training(steps=100), 2)


def of(world_size: int = 2, **changes: object) -> str:
    return contract(Training.model_validate({"steps": 100, **changes}), world_size)


def test_what_may_change_changes_nothing() -> None:
    assert difference(of(steps=200, weightDecay=0.0, microBatchSize=2), OURS) == ""


def test_what_differs_is_named_with_both_values() -> None:
    assert difference(of(seed=43), OURS) == "training.seed is 43 there and 42 here"
    assert difference(of(world_size=4), OURS) == "world size is 4 there and 2 here"
    assert difference(of(model={"layers": 4}), OURS) == "training.model.layers is 4 there and 3 here"


def test_many_differences_are_counted() -> None:
    told = difference(of(seed=1, model={"layers": 4, "hiddenSize": 128, "vocabularySize": 512}), OURS)
    assert told.count(" there and ") == 3 and told.endswith("; and 1 more")


def test_what_can_not_be_read_fits_nothing() -> None:
    assert difference("5ab0", OURS) == '"5ab0" there can not be read'
    assert difference("[1]", OURS) != "" and difference("", OURS) != ""
