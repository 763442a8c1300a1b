"""Experience: the trajectories of one step as the trainer reads them, token by token.

A row holds exactly the ids that were sampled, with the sampler's own log-probabilities; it is made from the token
ledger and nothing is encoded again. A step's rows are a parquet file in the step's directory: every rank reads it, and
a saved one can be trained again without an engine (`afm rl --replay`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

FILE = "experience.parquet"

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("group", pa.int64()),
        ("ids", pa.list_(pa.int32())),
        ("mask", pa.list_(pa.int8())),
        ("logprobs", pa.list_(pa.float64())),
        ("advantages", pa.list_(pa.float64())),
        ("staleness", pa.int32()),
    ],
    metadata={"afm.schema": "experience", "afm.schema_version": "1"},
)


@dataclass(frozen=True)
class ExperienceRow:
    """One trajectory that trains: parallel arrays, one entry a token (T).

    mask_T: 1 for a token that the policy sampled. logprobs_T: the sampler's log-probabilities (nats, at the sampling
    temperature), 0 where the mask is 0. advantages_T: 0 where the mask is 0. group: the prompt's position in the order
    of prompts. staleness: updates between the oldest policy that sampled a token of it and the one that is trained.
    """

    id: str
    group: int
    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    staleness: int = 0

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.mask), len(self.logprobs), len(self.advantages)}
        assert len(lengths) == 1, f"{self.id}: arrays of different lengths {sorted(lengths)}"

    @property
    def supervised(self) -> int:
        """Tokens with loss. The first token of a row has no context to be predicted from, so it never counts."""
        return sum(self.mask[1:])


def write_experience(rows: Sequence[ExperienceRow], directory: Path) -> None:
    """Rows as `directory/experience.parquet`, in their order."""
    columns = {name: [getattr(row, name) for row in rows] for name in SCHEMA.names}
    pq.write_table(pa.table(columns, schema=SCHEMA), directory / FILE)


def read_experience(directory: Path) -> list[ExperienceRow]:
    """The rows that `write_experience` wrote. Raises ValueError if there are none to read."""
    try:
        table = pq.read_table(directory / FILE, schema=SCHEMA)
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"{directory} holds no readable {FILE}: {error}") from error
    lists = ("ids", "mask", "logprobs", "advantages")
    return [ExperienceRow(**{**row, **{name: tuple(row[name]) for name in lists}}) for row in table.to_pylist()]
