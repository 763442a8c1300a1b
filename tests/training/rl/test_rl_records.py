"""What is remembered of a run of RL."""

import json

from rl_samples import episode, task

from afm_core.data import Status
from afm_core.rollout.sampler import EpisodeRequest
from afm_core.training.rl.records import End, Evaluation, RlState, collapse_warnings, evaluation_of, sampled_figures


def evaluation(step: int, accuracy: float | None) -> Evaluation:
    return Evaluation(step, accuracy, 4, 4, (0.0, 1.0), 1.0, 3.0)


def test_the_state_survives_json() -> None:
    state = RlState([{"step": 1, "loss": 0.1}], [evaluation(0, 0.5)], {"next": 3}, ["watch out"], End.EARLY_STOP)
    assert RlState.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_the_best_is_the_latest_of_the_most_accurate() -> None:
    state = RlState(evaluations=[evaluation(0, 0.5), evaluation(3, 0.75), evaluation(6, 0.75), evaluation(9, None)])
    assert state.best == 6
    assert RlState(steps=[{}, {}]).best == 2


def test_an_evaluation_counts_only_what_was_scored() -> None:
    request = EpisodeRequest("dev/0", task(1), temperature=0.0)
    trajectories = [episode(request, 1.0), episode(request, 0.0), episode(request, None, status=Status.GRADER_ERROR)]
    one = evaluation_of(3, trajectories)
    assert (one.step, one.n, one.scored, one.accuracy) == (3, 3, 2, 0.5)
    assert one.interval[0] < 0.5 < one.interval[1]
    assert evaluation_of(3, trajectories[2:]).accuracy is None


def test_the_figures_of_a_step_leave_unscored_rewards_out() -> None:
    request = EpisodeRequest("0/0", task(1))
    figures = sampled_figures([episode(request, 1.0), episode(request, None, status=Status.TOOL_ERROR)])
    assert figures["reward"] == 1.0
    assert figures["status"] == {"completed": 1, "tool_error": 1}


def test_a_policy_that_stops_calling_tools_is_warned_of() -> None:
    first = {"step": 1, "entropy": 1.0, "mean_model_tokens": 100.0, "mean_tool_calls": 3.0}
    assert collapse_warnings([first]) == []
    assert collapse_warnings([first, {**first, "step": 2}]) == []
    warnings = collapse_warnings([first, {**first, "step": 2, "mean_tool_calls": 0.5, "mean_model_tokens": 10.0}])
    assert len(warnings) == 2
    assert all(text.startswith("step 2") for text in warnings)
