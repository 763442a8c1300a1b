"""The episode loop and the concurrent pool, shared by policy sampling, RL, evaluation and serving."""

from afm_core.rollout.batch import run_episodes
from afm_core.rollout.episode import Episode, Mode, Setting
from afm_core.rollout.pool import EpisodePool, RolloutStalled

__all__ = ["Episode", "EpisodePool", "Mode", "RolloutStalled", "Setting", "run_episodes"]
