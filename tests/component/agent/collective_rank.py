"""Three ranks that meet in real gloo collectives until rank 1 stays away: `collective_rank.py HOW`. Started by the agent."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed
from torch.utils.data import DataLoader, Dataset

from ciuic_trainer.shared.progress import Phase, ProgressWriter

BEFORE = 5
CULPRIT = 1


class Samples(Dataset[int]):
    """Its worker process stops moving at one sample, with the culprit waiting for it."""

    def __init__(self, stop_at: int) -> None:
        self._stop_at = stop_at

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        if index == self._stop_at:
            time.sleep(3600)
        return index


def crunch() -> None:
    while True:
        pass


def take_twice() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def read_what_never_comes() -> None:
    path = Path(os.environ["CIUIC_PROGRESS_FILE"]).with_suffix(".pipe")
    os.mkfifo(path)
    path.read_text()


def main(how: str) -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    progress = ProgressWriter(Path(os.environ["CIUIC_PROGRESS_FILE"]), int(os.environ["CIUIC_ATTEMPT"]))
    progress.enter(Phase.STEP)
    stop_at = BEFORE if how == "loader" and rank == CULPRIT else -1
    batches = iter(DataLoader(Samples(stop_at), batch_size=1, num_workers=1 if how == "loader" else 0))
    value = torch.ones(4)
    for step in range(1000):
        next(batches)
        if rank == CULPRIT and step == BEFORE:
            match how:
                case "loop":
                    crunch()
                case "lock":
                    take_twice()
                case "input":
                    read_what_never_comes()
                case "stopped":
                    os.kill(os.getpid(), signal.SIGSTOP)
                case "another":
                    torch.distributed.broadcast(value, src=0)
                case "missing":
                    torch.distributed.barrier()
                    continue
        torch.distributed.all_reduce(value)
        progress.step(step + 1)
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1])
