"""Which trajectories are trained when, and how they share micro-batches. Pure functions of lengths and a seed.

The whole plan is known before the first step, so resuming is a matter of the step number alone, and every rank knows
the global step's number of supervised tokens without asking the others.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from afm_core.tokens import pack


@dataclass(frozen=True)
class Batch:
    """One micro-batch: indices of rows that are packed one after the other. `counted` False: padding of the plan.

    ZeRO talks in every forward and backward pass, so all ranks must do equally many: where rows run out, a rank
    repeats a row with weight 0.
    """

    rows: tuple[int, ...]
    counted: bool = True


def training_steps(rows: int, batch: int, epochs: float, seed: int) -> list[list[int]]:
    """Row indices of every optimizer step, in order.

    Each epoch is a new seeded permutation; epochs follow each other without a gap (a batch may straddle two), a
    fractional last epoch takes the beginning of its permutation, and the last batch may be smaller.
    """
    if rows == 0:
        return []
    wanted = max(1, round(rows * epochs))
    order: list[int] = []
    epoch = 0
    while len(order) < wanted:
        permutation = list(range(rows))
        random.Random(f"{seed}:{epoch}").shuffle(permutation)
        order.extend(permutation)
        epoch += 1
    order = order[:wanted]
    return [order[start : start + batch] for start in range(0, wanted, batch)]


def micro_batches(rows: Sequence[int], lengths: Sequence[int], capacity: int, world_size: int) -> list[list[Batch]]:
    """The micro-batches of one step, a list a rank, equally many each.

    rows: the step's row indices; lengths: tokens of every row of the data. A micro-batch holds at most `capacity`
    tokens. With several ranks the rows are spread evenly first. Raises ValueError if a row exceeds the capacity.
    """
    sizes = [lengths[row] for row in rows]
    # An even share a rank, so that no rank waits: never below the longest row, which must fit somewhere.
    even = max(max(sizes), -(-sum(sizes) // world_size))
    groups = [Batch(tuple(rows[i] for i in group)) for group in pack(sizes, min(capacity, even))]
    shortest = min(rows, key=lambda row: (lengths[row], row))
    while len(groups) % world_size:
        groups.append(Batch((shortest,), counted=False))
    return [groups[rank::world_size] for rank in range(world_size)]
