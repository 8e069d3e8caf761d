"""A readable, seekable file over memory, without a copy: the upload reads parts of it as it sends them."""

import io
from collections.abc import Callable


class Abandoned(Exception):
    """What is being read is not wanted any more."""


class Window(io.RawIOBase):
    def __init__(self, data: memoryview, wanted: Callable[[], bool] = lambda: True) -> None:
        self._data = data
        self._wanted = wanted
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        if not self._wanted():
            raise Abandoned
        end = len(self._data) if size is None or size < 0 else self._at + size
        piece = bytes(self._data[self._at : end])
        self._at += len(piece)
        return piece
