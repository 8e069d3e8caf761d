"""The fork server and a real text, tokenized once, for the trainer's component tests."""

import pydoc_data.topics
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from ciuic_trainer.train.tokenize import tokenize

from .ranks import fork_server


@pytest.fixture(scope="session")
def context() -> ForkServerContext:
    return fork_server()


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python's own manual, half a megabyte of English that every Python brings."""
    folder = tmp_path_factory.mktemp("data")
    text = folder / "manual.txt"
    text.write_text("\n".join(pydoc_data.topics.topics.values()))
    tokenize(text, folder / "tokens", vocabulary=1024, lines=64, held_out_every=10, shard_tokens=50_000)
    return folder / "tokens"
