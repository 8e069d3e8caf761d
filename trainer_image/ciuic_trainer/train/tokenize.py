"""`python -m ciuic_trainer.train.tokenize TEXT FOLDER`: a byte-pair tokenizer and token shards from a plain text.

Run when the image is built, and by hand for other texts. FOLDER gets tokenizer.json, manifest.json and the shards that
data.py reads. The same text and options give the same bytes. The text is cut into documents of --document-lines lines;
every --held-out-every-th document is held out, so that both parts speak of the same things. The default data set is
the King James Bible (public domain, 4.2 MB) from the Debian packages bible-kjv and bible-kjv-text:

    bible -f gen1:1-rev22:21 | cut -d' ' -f2- > kjv.txt      # one verse per line, without its reference
"""

import argparse
import itertools
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from .data import DTYPE, FORMAT, MANIFEST, TOKENIZER, Manifest, Shard, Split

END_TOKEN = "<|endoftext|>"
_ALPHABET = 256
_DOCUMENTS_PER_CALL = 256


def documents(text: Path, lines: int) -> Iterator[str]:
    with text.open(encoding="utf-8") as file:
        while document := "".join(itertools.islice(file, lines)):
            yield document


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Sequence[str], end_token: int) -> Iterator[list[int]]:
    """The tokens of each document, with the end token behind it."""
    for start in range(0, len(texts), _DOCUMENTS_PER_CALL):
        for encoding in tokenizer.encode_batch(texts[start : start + _DOCUMENTS_PER_CALL]):
            yield [*encoding.ids, end_token]
        done = min(start + _DOCUMENTS_PER_CALL, len(texts))
        print(f"\r  {done}/{len(texts)} documents", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def write_shards(folder: Path, split: Split, encoded: Iterator[list[int]], shard_tokens: int) -> Iterator[Shard]:
    """Shards of at least `shard_tokens` tokens, cut between documents; the last one may be shorter."""
    for number in itertools.count():
        tokens: list[int] = []
        for document in encoded:
            tokens += document
            if len(tokens) >= shard_tokens:
                break
        if not tokens:
            return
        data = np.array(tokens, dtype=DTYPE).tobytes()
        name = f"{split}-{number:05d}.bin"
        (folder / name).write_bytes(data)
        yield Shard(file=name, split=split, tokens=len(tokens), crc32=zlib.crc32(data))


def tokenize(text: Path, folder: Path, vocabulary: int, lines: int, held_out_every: int, shard_tokens: int) -> Manifest:
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[Split, list[str]] = {Split.TRAIN: [], Split.HELD_OUT: []}
    for number, document in enumerate(documents(text, lines)):
        parts[Split.HELD_OUT if number % held_out_every == held_out_every - 1 else Split.TRAIN].append(document)
    print(f"training a tokenizer of {vocabulary} tokens", file=sys.stderr)
    tokenizer = train_tokenizer(parts[Split.TRAIN], vocabulary)
    tokenizer.save(str(folder / TOKENIZER))
    end_token = tokenizer.get_vocab()[END_TOKEN]
    shards: list[Shard] = []
    for split, texts in parts.items():
        print(f"encoding the {split} part", file=sys.stderr)
        shards += write_shards(folder, split, encode(tokenizer, texts, end_token), shard_tokens)
    manifest = Manifest(
        format=FORMAT,
        dtype=DTYPE,
        vocabulary_size=tokenizer.get_vocab_size(),
        end_token=end_token,
        tokenizer_crc32=zlib.crc32((folder / TOKENIZER).read_bytes()),
        shards=tuple(shards),
    )
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
    return manifest


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m ciuic_trainer.train.tokenize", description=__doc__)
    parser.add_argument("text", type=Path, metavar="TEXT", help="a UTF-8 text file")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the shards go")
    parser.add_argument("--vocabulary", type=int, default=1024, help="tokens, at least 257 (default: 1024)")
    parser.add_argument("--document-lines", type=int, default=64, help="lines of one document (default: 64)")
    parser.add_argument("--held-out-every", type=int, default=20, help="one document of so many (default: 20)")
    parser.add_argument("--shard-tokens", type=int, default=16_000_000, help="tokens per shard (default: 16 million)")
    options = parser.parse_args(arguments)
    if options.vocabulary < _ALPHABET + 1:
        parser.error(f"--vocabulary must be at least {_ALPHABET + 1}: all bytes and the end token")
    manifest = tokenize(
        options.text,
        options.folder,
        options.vocabulary,
        options.document_lines,
        options.held_out_every,
        options.shard_tokens,
    )
    for split in Split:
        print(f"{split}: {manifest.tokens(split)} tokens")


if __name__ == "__main__":
    main(sys.argv[1:])
