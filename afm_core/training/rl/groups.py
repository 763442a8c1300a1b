"""From a prompt's group of episodes to rows that train: who counts, whether there is signal, and the advantages.

Departs from the usual order (advantages over all, then a loss mask): a member that may not train is taken out *before*
its group's mean and deviation are formed, and a group without signal is taken out whole. So the rows, and every
denominator that is counted over them, are those of the live part alone (trl#6367, trl#6369), for every estimator.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from afm_core.config import AgentConfig, Estimator, RlConfig
from afm_core.data import AgentTask, Status, Trajectory
from afm_core.tokens import check_masks, ledger_of
from afm_core.training.rl.advantages import dr_grpo, grpo, overlong_penalty, reinforce_pp, rloo, terminal_rewards
from afm_core.training.rl.cursor import PromptOutcome
from afm_core.training.rl.eligibility import Masked, judge, sampled_segments
from afm_core.training.rl.experience import ExperienceRow

_OF_A_GROUP = {Estimator.GRPO: grpo, Estimator.DR_GRPO: dr_grpo, Estimator.RLOO: rloo}


@dataclass(frozen=True)
class Group:
    """The episodes of one prompt. index: the prompt's position in the order of prompts."""

    index: int
    task: AgentTask
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True)
class Member:
    """A trajectory that trains. reward: shaped. staleness: updates since the oldest policy that sampled a token."""

    trajectory: Trajectory
    reward: float
    staleness: int


@dataclass(frozen=True)
class Assessed:
    """A group, sorted: len(group.trajectories) == len(members) + sum(masked.values()), always.

    members: those that train, none if the group has no signal. masked: how many do not, by reason.
    """

    group: Group
    members: tuple[Member, ...]
    masked: Mapping[Masked, int]
    outcome: PromptOutcome

    @property
    def has_signal(self) -> bool:
        """Whether the group can be trained."""
        return self.outcome is PromptOutcome.TRAINED


def shaped_reward(trajectory: Trajectory, config: RlConfig, agent: AgentConfig) -> float:
    """(1 - w) answer + w format + the overlong penalty, w = rl.format_weight.

    Format is 1 / (1 + violations of the grammar) for an episode that ended with an answer, else 0. The penalty counts
    sampled tokens only. The trajectory must be scored.
    """
    assert trajectory.reward is not None, f"{trajectory.id} is unscored: judge it first"
    answered = trajectory.status is Status.COMPLETED
    well_formed = 1 / (1 + len(trajectory.violations)) if answered else 0.0
    reward = (1 - config.format_weight) * trajectory.reward + config.format_weight * well_formed
    sampled = sum(len(segment.token_ids or ()) for segment in sampled_segments(trajectory))
    limit = agent.budget.total_tokens
    return reward + overlong_penalty(sampled, limit, config.overlong_buffer, config.overlong_penalty)


def staleness_of(trajectory: Trajectory, versions: Mapping[str, int], current: int) -> int:
    """Updates between the oldest policy that sampled a token of the trajectory and update number `current`.

    versions: policy version (a segment's `policy_version`) -> number of the update that made it, 0 for the first
    policy. Raises ValueError if a version is unknown: those weights were never this trainer's.
    """
    numbers = []
    for segment in sampled_segments(trajectory):
        if segment.policy_version is None or segment.policy_version not in versions:
            raise ValueError(
                f"trajectory {trajectory.id} was sampled by policy {segment.policy_version!r}, which this training "
                "never made: the sampler holds other weights than those it was given"
            )
        numbers.append(versions[segment.policy_version])
    return current - min(numbers, default=current)


def assess(group: Group, config: RlConfig, agent: AgentConfig, versions: Mapping[str, int], current: int) -> Assessed:
    """Sort a group's trajectories into those that train and those that do not, for the update after `current`.

    The group has signal if at least `rl.minimum_group` members may train and their shaped rewards are not all equal.
    Raises ValueError as `staleness_of` and `shaped_reward` do.
    """
    masked: Counter[Masked] = Counter()
    members = []
    for trajectory in group.trajectories:
        reason = judge(trajectory, config)
        staleness = 0 if reason else staleness_of(trajectory, versions, current)
        if reason is None and staleness > config.maximum_staleness:
            reason = Masked.STALE
        if reason is None:
            members.append(Member(trajectory, shaped_reward(trajectory, config, agent), staleness))
        else:
            masked[reason] += 1
    outcome = _outcome([member.reward for member in members], config.minimum_group)
    if outcome is not PromptOutcome.TRAINED and members:
        masked[Masked(outcome.value)] += len(members)
        members = []
    return Assessed(group, tuple(members), dict(masked), outcome)


def masked_counts(groups: Iterable[Assessed]) -> dict[str, int]:
    """How many trajectories of these groups do not train, by reason, sorted by name."""
    total: Counter[Masked] = Counter()
    for assessed in groups:
        total.update(assessed.masked)
    return {reason.value: number for reason, number in sorted(total.items())}


def experience(groups: Sequence[Assessed], config: RlConfig) -> list[ExperienceRow]:
    """The rows of one step: those groups' members in order, token by token, with advantages by `rl.estimator`.

    Groups without signal give no row, so [] if none has any. Raises MaskError if a mask is wrong (none or all of the
    tokens, or a token that the policy did not sample).
    """
    members = [(assessed, member) for assessed in groups for member in assessed.members]
    if not members:
        return []
    # Every segment of a member has its ids (see `judge`), so no tokenizer is needed: nothing is encoded again.
    ledgers = [ledger_of(member.trajectory, None, append_end_of_turn=False) for _, member in members]
    masks = [ledger.mask() for ledger in ledgers]
    check_masks(ledgers, masks)
    advantages = _advantages(groups, masks, config)
    return [
        ExperienceRow(
            id=member.trajectory.id,
            group=assessed.group.index,
            ids=tuple(ledger.ids),
            mask=tuple(mask),
            logprobs=tuple(value if value is not None else 0.0 for value in ledger.logprobs),
            advantages=tuple(row),
            staleness=member.staleness,
        )
        for (assessed, member), ledger, mask, row in zip(members, ledgers, masks, advantages, strict=True)
    ]


def _outcome(rewards: Sequence[float], minimum: int) -> PromptOutcome:
    if len(rewards) < minimum:
        return PromptOutcome.SMALL_GROUP
    return PromptOutcome.NO_SIGNAL if min(rewards) == max(rewards) else PromptOutcome.TRAINED


def _advantages(groups: Sequence[Assessed], masks: Sequence[Sequence[int]], config: RlConfig) -> list[list[float]]:
    """Advantages by token, a list a member: one a trajectory by its group, or returns over the whole batch."""
    rewards = [[member.reward for member in assessed.members] for assessed in groups if assessed.members]
    if config.estimator is Estimator.REINFORCE_PP:
        flat = [reward for group in rewards for reward in group]
        placed = [terminal_rewards(reward, mask) for reward, mask in zip(flat, masks, strict=True)]
        return reinforce_pp(placed, masks, config.discount)
    scalars = [value for group in rewards for value in _OF_A_GROUP[config.estimator](group)]
    return [[value if kept else 0.0 for kept in mask] for value, mask in zip(scalars, masks, strict=True)]
