"""The sentence that says why a rank ended, from its last lines."""

import pytest

from ciuic_trainer.agent.failure import describe

LEAK = "See https://nanobind.readthedocs.io/en/latest/refleaks.html"
MISSING = "training.data.path: /cache/tokens/manifest.json cannot be read; make the folder"


@pytest.mark.parametrize(
    ("exit_code", "lines", "message"),
    [
        (
            1,
            ["step 3", "ValueError: the rate is negative: -3"],
            "ended with exit code 1: ValueError: the rate is negative: -3",
        ),
        (1, ["torch.OutOfMemoryError: no room", LEAK], "ended with exit code 1: torch.OutOfMemoryError: no room"),
        (1, [f"rank 0: {MISSING}", LEAK], f"ended with exit code 1: {MISSING}"),
        (2, ["own.py: error: --steps is missing", ""], "ended with exit code 2: own.py: error: --steps is missing"),
        (-9, ["step 4 | loss 4.1"], "was killed by SIGKILL"),
        (-11, ["ValueError: earlier"], "was killed by SIGSEGV: ValueError: earlier"),
        (1, [], "ended with exit code 1"),
    ],
)
def test_the_cause(exit_code: int, lines: list[str], message: str) -> None:
    assert describe(0, exit_code, lines, 0.0).message == f"rank 0 {message}"


def test_the_same_failure_has_the_same_fingerprint() -> None:
    first = describe(0, 1, ["RuntimeError: step 12 at 0x7f00"], 0.0)
    again = describe(1, 1, ["RuntimeError: step 15 at 0x7e10"], 0.0)
    another = describe(0, 1, ["RuntimeError: no route"], 0.0)
    assert first.fingerprint == again.fingerprint != another.fingerprint
