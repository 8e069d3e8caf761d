"""The note in the memory tier of which attempt's ranks were started in this pod. It outlives the container.

Its page is taken before ranks fill the volume, and it is written in place: noting an attempt needs no room.
"""

import os
from pathlib import Path

WIDTH_BYTES = 20


class Marker:
    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.exists():
            path.write_text("0".ljust(WIDTH_BYTES))

    def read(self) -> int:
        text = self._path.read_text().strip()
        return int(text) if text.isdecimal() else 0

    def write(self, attempt: int) -> None:
        descriptor = os.open(self._path, os.O_WRONLY)
        try:
            os.pwrite(descriptor, str(attempt).ljust(WIDTH_BYTES).encode(), 0)
        finally:
            os.close(descriptor)
