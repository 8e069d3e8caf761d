"""The sentence that says why a rank ended, from its last lines."""

from pathlib import Path

import pytest

from ciuic_trainer.agent.failure import describe
from ciuic_trainer.agent.out_of_memory import Memory, look, sentence

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


def test_what_the_kernel_killed_for_memory_says_so() -> None:
    before, after = Memory(1, 300 << 20), Memory(2, 300 << 20)
    assert sentence(before, before) == ""
    killed = sentence(before, after)
    assert "out of memory at the container's limit of 300 MiB; raise limits.memory" in killed
    assert describe(0, -9, ["step 4"], 0.0, killed).message == f"rank 0 was killed by SIGKILL: {killed}"
    assert describe(0, 1, ["ValueError: x"], 0.0, killed).cause == "ValueError: x"


def test_memory_is_read_from_either_version_of_cgroups(tmp_path: Path) -> None:
    assert look(tmp_path) == Memory()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    (tmp_path / "memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert look(tmp_path) == Memory(3, None)
    (tmp_path / "memory.events").write_text("low 0\noom 5\noom_kill 4\n")
    (tmp_path / "memory.max").write_text("1073741824\n")
    assert look(tmp_path) == Memory(4, 1 << 30)


def test_the_same_failure_has_the_same_fingerprint() -> None:
    first = describe(0, 1, ["RuntimeError: step 12 at 0x7f00"], 0.0)
    again = describe(1, 1, ["RuntimeError: step 15 at 0x7e10"], 0.0)
    another = describe(0, 1, ["RuntimeError: no route"], 0.0)
    assert first.fingerprint == again.fingerprint != another.fingerprint
