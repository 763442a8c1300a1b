"""Trajectories as a rollout gives them: ids and log-probabilities of every token, one token a character."""

from afm_core.config import AgentConfig, Budget, RlConfig
from afm_core.data import AgentTask, Origin, Segment, Status, Trajectory, Usage

TASK = AgentTask.create("Who?", ("42",))
AGENT = AgentConfig(budget=Budget(total_tokens=400))
VERSIONS = {"v0": 0, "v1": 1, "v2": 2}

CALL = "<think>t</think><web_search>q</web_search>"
ANSWER = "<think>t</think><answer>42</answer>"


def config(**fields):
    """A configuration of RL with small groups."""
    return RlConfig.model_validate({"prompts": 2, "group_size": 4, **fields})


def sampled(text, version="v0", logprobs=True):
    """A turn of the policy; log-probabilities depend on the place, so that a shift would show."""
    ids = tuple(ord(character) for character in text)
    values = tuple(-0.01 * (place + 1) for place in range(len(ids))) if logprobs else None
    return Segment(origin=Origin.SAMPLED, text=text, token_ids=ids, logprobs=values, policy_version=version)


def observation(text="nothing"):
    """A tool's result with its ids."""
    return Segment(origin=Origin.TOOL, tag="observation", text=text, token_ids=tuple(ord(one) for one in text))


def trajectory(number=0, reward=1.0, status=Status.COMPLETED, turns=(CALL, ANSWER), versions=(), **fields):
    """An episode: prompt, then the turns with observations between them. versions: policy version by turn."""
    prompt = "Question: Who?"
    segments = [Segment(origin=Origin.PROMPT, text=prompt, token_ids=tuple(ord(one) for one in prompt))]
    for place, text in enumerate(turns):
        version = versions[place] if place < len(versions) else "v0"
        segments += [observation()] if place else []
        segments.append(sampled(text, version))
    return Trajectory(
        id=f"episode-{number}", task_id=TASK.id, question=TASK.question, grammar="web", source="v0",
        segments=tuple(segments), status=status, reward=reward,
        usage=Usage(sampled_tokens=sum(len(text) for text in turns)), **fields,
    )  # fmt: skip


def rewarded(*rewards):
    """One trajectory a reward."""
    return tuple(trajectory(number, reward) for number, reward in enumerate(rewards))
