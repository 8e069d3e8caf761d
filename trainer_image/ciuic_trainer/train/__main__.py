"""`python -m ciuic_trainer.train`: one rank. Started by the agent, or by hand:

    torchrun --nproc-per-node 2 -m ciuic_trainer.train training.json

training.json is a `spec.training`. By hand there is no agent: nobody reads the progress, and no checkpoints are made.

Exit codes: 0 all steps are done; 75 (ciuic_api.protocol.STOPPED_EXIT_CODE) stopped as asked by SIGTERM, with a last
checkpoint; 1 anything else, with one sentence or a traceback on stderr. SIGTERM ends the current step on all ranks.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pydantic

from ciuic_api.protocol import STOPPED_EXIT_CODE
from ciuic_api.training import Training
from ciuic_trainer.shared import progress, rank_env, stacks
from ciuic_trainer.shared.rank_env import RankEnv, RankEnvError

from .errors import ConfigurationError, TrainerError

FAILED_EXIT_CODE = 1


class StopRequest:
    """Set by SIGTERM, read by the loop at the end of each step."""

    def __init__(self) -> None:
        self._asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def __call__(self) -> bool:
        return self._asked

    def _ask(self, _signal: int, _frame: object) -> None:
        self._asked = True


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    stop_requested = StopRequest()  # before the imports that take seconds
    stacks.answer(environ)
    with tempfile.TemporaryDirectory(prefix="ciuic-rank-") as scratch:
        try:
            env = RankEnv.from_environ(environ) if rank_env.ATTEMPT in environ else by_hand(environ, Path(scratch))
            training = read_training(env, arguments)
            from .loop import train

            return 0 if train(env, training, stop_requested) else STOPPED_EXIT_CODE
        except (TrainerError, RankEnvError) as error:
            print(f"rank {environ.get('RANK', '?')}: {error}", file=sys.stderr, flush=True)
            return FAILED_EXIT_CODE


def by_hand(environ: Mapping[str, str], scratch: Path) -> RankEnv:
    """What the agent would have said, for ranks started by torchrun alone."""
    progress.create(scratch / "progress")
    unsaid = {
        rank_env.ATTEMPT: "1",
        rank_env.PROGRESS_FILE: str(scratch / "progress"),
        rank_env.MESSAGES_SOCKET: str(scratch / "messages"),
        rank_env.MEMORY_TIER_DIR: str(scratch / "memory"),
        rank_env.CHECKPOINT_EVERY_STEPS: "0",
        rank_env.MEMORY_EVERY_STEPS: "0",
        rank_env.ACCELERATOR: "cpu",
        rank_env.CONTRACT: "",
        rank_env.JOB: "",
        rank_env.GRACE_SECONDS: "30",
        "NODE_RANK": environ.get("GROUP_RANK", "0"),
    }
    return RankEnv.from_environ({**unsaid, **environ})


def read_training(env: RankEnv, arguments: Sequence[str]) -> Training:
    path = Path(arguments[0]) if arguments else env.training_file
    if path is None:
        raise ConfigurationError("no configuration: name a file with a spec.training as JSON")
    try:
        return Training.model_validate_json(path.read_bytes()).resolved()
    except (OSError, pydantic.ValidationError) as error:
        raise ConfigurationError(f"{path}: {error}") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
