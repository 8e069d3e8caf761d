"""A keyed permutation of [0, size): the order of samples, computed and never stored. Used by data.py.

A balanced Feistel network permutes the smallest power of four that holds `size`; an index that lands outside is sent
through again until it lands inside (cycle walking, fewer than four rounds on average). Any index is found in constant
time and memory, on any rank, whatever the world size.
"""

from dataclasses import dataclass

_ROUNDS = 6
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True)
class Permutation:
    size: int
    key: int

    def __call__(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise IndexError(f"{index} is not in [0, {self.size})")
        half_bits = max(1, ((self.size - 1).bit_length() + 1) // 2)
        while True:
            index = self._feistel(index, half_bits)
            if index < self.size:
                return index

    def _feistel(self, index: int, half_bits: int) -> int:
        mask = (1 << half_bits) - 1
        left, right = index >> half_bits, index & mask
        for number in range(_ROUNDS):
            left, right = right, left ^ (_mix(right ^ _mix(self.key + number)) & mask)
        return left << half_bits | right


def _mix(value: int) -> int:
    """The finalizer of splitmix64: every input bit changes every output bit with probability one half."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK64
    return value ^ value >> 31
