"""Which relations may follow one another, which comparisons exist, and which of both are kept out of training."""

import math
import random
from dataclasses import dataclass

from afm_core.data import GUESSABLE_RELATIONS, Operation
from afm_core.taskcraft.relations import READ_BACKWARDS, Kind, Relation, relations_of
from afm_core.taskcraft.wording import COMPARISONS

_BACKWARDS = {relation.key for relation in READ_BACKWARDS}


@dataclass(frozen=True)
class Chain:
    """Relations followed one after another from a named start."""

    relations: tuple[Relation, ...]

    @property
    def name(self) -> str:
        """E.g. `airport>city>population`."""
        return ">".join((self.relations[0].subject, *(relation.name for relation in self.relations)))

    @property
    def hops(self) -> int:
        """Lookups on the path."""
        return len(self.relations)

    @property
    def guessable(self) -> bool:
        """Whether its answers come from a small set."""
        return self.relations[-1].name in GUESSABLE_RELATIONS


@dataclass(frozen=True)
class Comparison:
    """Two subjects of one kind, one numeric relation; the answer is the subject that wins. Two lookups, two hops."""

    relation: str
    operation: Operation

    @property
    def name(self) -> str:
        """E.g. `compare city.population larger`."""
        return f"compare {self.relation} {self.operation}"

    hops = 2
    guessable = True


Composition = Chain | Comparison


def compositions(most_hops: int) -> list[Composition]:
    """Every chain of at most `most_hops` relations and, from two hops on, every comparison; sorted by hops, name.

    A step backwards (code -> airport) only starts a chain, and no chain returns to where it came from.
    """
    chains: list[Composition] = []
    grown = [Chain((relation,)) for kind in Kind for relation in relations_of(kind)]
    while grown:
        chains.extend(grown)
        grown = [
            Chain((*chain.relations, relation))
            for chain in grown
            if chain.hops < most_hops
            for relation in relations_of(chain.relations[-1].value)
            if _may_follow(chain.relations, relation)
        ]
    comparisons = [Comparison(*key) for key in COMPARISONS] if most_hops > 1 else []
    return sorted([*chains, *comparisons], key=lambda one: (one.hops, one.name))


def _may_follow(relations: tuple[Relation, ...], following: Relation) -> bool:
    if following.key in _BACKWARDS:
        return False
    back_to_start = relations[0].reads == following.key
    return not back_to_start and (relations[-1].name, following.name) != ("capital", "country")


def held_out_names(found: list[Composition], share: float, seed: int) -> frozenset[str]:
    """Names of the compositions kept out of training: `share` of all, chosen among those of two hops or more.

    Every relation is trained in some chain: chains of one hop are never held out. Each class (hops, comparison)
    keeps at least one trained member.
    """
    classes: dict[tuple[int, bool], list[str]] = {}
    for one in found:
        if one.hops > 1:
            classes.setdefault((one.hops, isinstance(one, Comparison)), []).append(one.name)
    candidates = sum(len(names) for names in classes.values())
    if not candidates:
        return frozenset()
    rate = min(1.0, share * len(found) / candidates)
    chosen: set[str] = set()
    for key, names in sorted(classes.items()):
        count = min(math.ceil(rate * len(names)), len(names) - 1)
        chosen.update(random.Random(f"held out {seed} {key}").sample(sorted(names), count))
    return frozenset(chosen)
