"""Tokens: the same files from the same text, samples found by arithmetic, broken files refused with a sentence."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from ciuic_trainer.train.data import MANIFEST, TOKENIZER, Manifest, SampleOrder, Split, TokenSplit, batch, read_manifest
from ciuic_trainer.train.errors import ConfigurationError
from ciuic_trainer.train.tokenize import tokenize

LENGTH = 16
LINES = [f"{n} and {n + 1} make {2 * n + 1}, which nobody doubts; {n} times {n} is {n * n}.\n" for n in range(2000)]


def make(folder: Path, text: str = "".join(LINES)) -> Manifest:
    source = folder.with_suffix(".txt")
    source.write_text(text)
    return tokenize(source, folder, vocabulary=300, lines=8, held_out_every=10, shard_tokens=5000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("data") / "tokens"
    make(found)
    return found


def test_the_same_text_gives_the_same_files(folder: Path, tmp_path: Path) -> None:
    make(tmp_path / "again")
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir()) and len(names) > 4
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_the_shards_hold_the_text(folder: Path) -> None:
    """Decoded, they are the documents, one of ten held out, each with an end token behind it."""
    manifest = read_manifest(folder)
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    documents = ["".join(LINES[start : start + 8]) for start in range(0, len(LINES), 8)]
    for split in Split:
        shards = [np.fromfile(folder / shard.file, "<u4") for shard in manifest.shards if shard.split == split]
        tokens = np.concatenate(shards)
        assert tokens.max() < manifest.vocabulary_size == 300
        texts = [
            tokenizer.decode(part[:-1].tolist()) for part in np.split(tokens, np.flatnonzero(tokens == 0) + 1)[:-1]
        ]
        assert texts == [text for n, text in enumerate(documents) if (n % 10 == 9) == (split == Split.HELD_OUT)]


def test_samples_follow_each_other_within_a_shard(folder: Path) -> None:
    manifest = read_manifest(folder)
    samples = TokenSplit(folder, manifest, Split.TRAIN, LENGTH)
    shards = [np.fromfile(folder / shard.file, "<u4") for shard in manifest.shards if shard.split == Split.TRAIN]
    assert len(shards) > 2, "the test wants sample numbers that cross shards"
    expected = [shard[n * LENGTH : (n + 1) * LENGTH + 1] for shard in shards for n in range((len(shard) - 1) // LENGTH)]
    assert len(samples) == len(expected)
    for number, sample in enumerate(expected):
        assert samples[number].tolist() == sample.tolist()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_order_does_not_depend_on_the_world_size(folder: Path, world_size: int) -> None:
    samples = TokenSplit(folder, read_manifest(folder), Split.TRAIN, LENGTH)
    order = SampleOrder(len(samples), seed=1)
    rows = [batch(samples, order, 12 // world_size * rank, 12 // world_size) for rank in range(world_size)]
    assert np.concatenate(rows).tolist() == batch(samples, order, 0, 12).tolist()


def test_every_epoch_has_every_sample_in_another_order() -> None:
    order = SampleOrder(100, seed=1)
    epochs = [[order.sample(place) for place in range(first, first + 100)] for first in (0, 100)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(100)) and epochs[0] != epochs[1]
    assert [order.epoch(place) for place in (0, 99, 100)] == [0, 0, 1]


def test_another_seed_is_another_order() -> None:
    assert [SampleOrder(100, 1).sample(n) for n in range(9)] != [SampleOrder(100, 2).sample(n) for n in range(9)]


def test_another_text_has_another_digest(folder: Path, tmp_path: Path) -> None:
    assert make(tmp_path / "other", "".join(LINES) + "and more\n").digest() != read_manifest(folder).digest()


def test_a_flipped_byte_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "tokens"
    manifest = make(folder)
    path = folder / manifest.shards[0].file
    path.write_bytes(b"\x01" + path.read_bytes()[1:])
    with pytest.raises(ConfigurationError, match="not what its manifest describes"):
        TokenSplit(folder, manifest, Split.TRAIN, LENGTH)


def test_what_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"training.data.path: .*manifest.json cannot be read"):
        read_manifest(tmp_path)
    with pytest.raises(ConfigurationError, match="lower sequenceLength"):
        TokenSplit(folder, read_manifest(folder), Split.HELD_OUT, 1_000_000)
    (tmp_path / MANIFEST).write_text("{}")
    with pytest.raises(ConfigurationError, match="is not a token manifest"):
        read_manifest(tmp_path)
