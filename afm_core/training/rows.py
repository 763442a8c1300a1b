"""Trajectories to training rows: ids and loss masks out of the token ledger, gated before anything is trained.

Rows too long for the configured limit are left out and counted, never cut: a cut trajectory would teach the model to
stop in the middle.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from afm_core.coa import grammar_for, prompt
from afm_core.config import AgentConfig, ConfigError, SftConfig
from afm_core.data import Tag, Trajectory
from afm_core.tokens import Ledger, chat_prompt_ids, check_masks, ledger_of, render_colored_sample

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Row:
    """One trajectory to train: ids and mask have one length; mask 1 means the token is learned."""

    id: str
    ids: tuple[int, ...]
    mask: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.ids) == len(self.mask), f"{self.id}: {len(self.ids)} ids, {len(self.mask)} mask entries"

    @property
    def supervised(self) -> int:
        """Tokens with loss. The first token of a row has no context to be predicted from, so it never counts."""
        return sum(self.mask[1:])


@dataclass(frozen=True)
class Prepared:
    """What preparation made: rows in the order of the trajectories, and how many were too long."""

    rows: tuple[Row, ...]
    too_long: int
    supervised_share: float


def prepare(trajectories: Sequence[Trajectory], tokenizer: Any, agent: AgentConfig, sft: SftConfig) -> Prepared:
    """Tokenise, mask, gate. Logs a coloured sample of the mask.

    Raises:
        ConfigError: nothing to train, or every trajectory is longer than `sft.max_tokens`.
        MaskError: a mask that cannot be right (see afm_core.tokens.check_masks).
    """
    if not trajectories:
        raise ConfigError("there is no trajectory to train on: the curated set is empty")
    ledgers = [ledger_of(row, tokenizer, _prompt_ids(row, tokenizer, agent)) for row in trajectories]
    fitting = [pair for pair in zip(trajectories, ledgers, strict=True) if len(pair[1]) <= sft.max_tokens]
    if not fitting:
        longest = max(len(ledger) for ledger in ledgers)
        raise ConfigError(
            f"all {len(ledgers)} trajectories are longer than sft.max_tokens = {sft.max_tokens} "
            f"(the longest has {longest} tokens): raise sft.max_tokens and sft.micro_batch_tokens"
        )
    switches = {"mask_observations": sft.mask_observations, "train_mistakes": sft.train_mistakes}
    kept = [ledger for _, ledger in fitting]
    masks = [ledger.mask(**switches) for ledger in kept]
    share = check_masks(kept, masks, **switches)
    rows = [
        Row(trajectory.id, tuple(ledger.ids), tuple(mask))
        for (trajectory, ledger), mask in zip(fitting, masks, strict=True)
    ]
    _log_summary(rows, len(ledgers) - len(kept), share, kept[0], tokenizer, switches)
    return Prepared(tuple(rows), len(ledgers) - len(kept), share)


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Rows as a parquet file for the training workers."""
    table = pa.table(
        {
            "id": [row.id for row in rows],
            "ids": pa.array([row.ids for row in rows], pa.list_(pa.int32())),
            "mask": pa.array([row.mask for row in rows], pa.list_(pa.int8())),
        }
    )
    pq.write_table(table, path)


def read_rows(path: Path) -> list[Row]:
    """The rows that `write_rows` wrote."""
    table = pq.read_table(path).to_pylist()
    return [Row(row["id"], tuple(row["ids"]), tuple(row["mask"])) for row in table]


def _prompt_ids(trajectory: Trajectory, tokenizer: Any, agent: AgentConfig) -> list[int]:
    tools = [Tag(tag) for tag in agent.tools]
    return chat_prompt_ids(
        tokenizer, prompt(trajectory.question, grammar_for(agent.grammar), agent.prompt, tools=tools)
    )


def _log_summary(
    rows: Sequence[Row], too_long: int, share: float, sample: Ledger, tokenizer: Any, switches: dict[str, bool]
) -> None:
    mean = sum(len(row.ids) for row in rows) / len(rows)
    _LOG.info("%d trajectories, %.0f tokens on average, %.0f%% learned", len(rows), mean, 100 * share)
    if too_long:
        _LOG.warning("%d trajectories are longer than sft.max_tokens and are left out", too_long)
    _LOG.info("a sample (green: learned):\n%s", render_colored_sample(sample, tokenizer, **switches))
