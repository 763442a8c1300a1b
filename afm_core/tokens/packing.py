"""Arranging trajectories of different lengths into rows. Pure functions of lengths; indices out, tokens
untouched.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Best-fit decreasing: bins of indices, each bin's lengths adding up to at most `capacity` tokens.

    Deterministic (ties by index); every index is in exactly one bin, and bins list their indices in
    ascending order. Raises ValueError if a length is negative or exceeds the capacity.
    """
    _refuse(lengths, capacity)
    bins: list[list[int]] = []
    free: list[tuple[int, int]] = []
    for index in sorted(range(len(lengths)), key=lambda item: (-lengths[item], item)):
        length = lengths[index]
        place = bisect_left(free, (length, -1))
        if place == len(free):
            bins.append([index])
            insort(free, (capacity - length, len(bins) - 1))
        else:
            left, number = free.pop(place)
            bins[number].append(index)
            insort(free, (left - length, number))
    return [sorted(group) for group in bins]


def length_buckets(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Groups of indices of similar length, longest first, whose padded size (count x longest) is at most
    `capacity`.

    Deterministic; every index is in exactly one group. Raises ValueError if a length is negative or exceeds
    the capacity.
    """
    _refuse(lengths, capacity)
    groups: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda item: (-lengths[item], item)):
        if groups and (len(groups[-1]) + 1) * longest <= capacity:
            groups[-1].append(index)
        else:
            groups.append([index])
            longest = lengths[index]
    return groups


def _refuse(lengths: Sequence[int], capacity: int) -> None:
    for index, length in enumerate(lengths):
        if length < 0 or length > capacity:
            raise ValueError(f"item {index} has {length} tokens; the capacity is {capacity}")
