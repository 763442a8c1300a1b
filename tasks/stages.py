"""The stages as Prefect tasks. Retries (with back-off and jitter) are for infrastructure alone."""

from collections.abc import Callable
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.states import State
from prefect.tasks import exponential_backoff

from afm_core.config import ConfigError
from afm_core.execution import Retraining, RunSession, expert_inputs, is_retryable, plan_retraining, teaching_stage
from afm_core.store import ArtifactRef
from afm_core.tracking import Champion, Registry
from tasks.runner import run_stage

Made = ArtifactRef | None
"""An input or result: None where the run's road does not reach the stage that makes it."""


async def _infrastructure_only(_task: object, _run: TaskRun, state: "State[Any]") -> bool:
    error = await state.aresult(raise_on_failure=False)
    return isinstance(error, BaseException) and is_retryable(error)


async def _not_the_users_mistake(_task: object, _run: TaskRun, state: "State[Any]") -> bool:
    return not isinstance(await state.aresult(raise_on_failure=False), ConfigError)


def _stage_task(run_name: str | None = None) -> Callable[[Callable[..., Any]], Any]:
    """A task with the house's settings: no Prefect cache, no stored result, two retries of infrastructure failures.

    Its run is called after the stage.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        return task(
            cache_policy=NO_CACHE,
            persist_result=False,
            retries=2,
            retry_delay_seconds=exponential_backoff(backoff_factor=5),
            retry_jitter_factor=0.5,
            retry_condition_fn=_infrastructure_only,
            task_run_name=run_name or function.__name__,
        )(function)

    return decorate


@_stage_task()
def corpus(session: RunSession) -> "State[Made]":
    """Freeze the documents."""
    return run_stage(session, "corpus", {})


@_stage_task()
def tasks(session: RunSession, corpus: Made) -> "State[Made]":
    """Make verifiable tasks from the documents."""
    return run_stage(session, "tasks", {"corpus": corpus})


@_stage_task()
def pool(session: RunSession, corpus: Made, tasks: Made, **versions: Made) -> "State[Made]":
    """Join the profile's tasks with a version of the task pool, and say what is new."""
    return run_stage(session, "pool", {"corpus": corpus, "tasks": tasks, **versions})


@_stage_task(run_name="teach {variant}")
def teach(session: RunSession, corpus: Made, tasks: Made, variant: str = "", **additions: Made) -> "State[Made]":
    """Demonstrate the training tasks (of a pool's version: those that it added) with the run's teacher."""
    return run_stage(session, teaching_stage(session.config), {"corpus": corpus, "tasks": tasks, **additions}, variant)


@_stage_task()
def curate(session: RunSession, tasks: Made, **demonstrations: Made) -> "State[Made]":
    """Filter, deduplicate and mix the demonstrations."""
    return run_stage(session, "curate", {"tasks": tasks, **demonstrations})


@_stage_task()
def base(session: RunSession, corpus: Made) -> "State[Made]":
    """Bring the base model into the store (the tiny one is made from the corpus)."""
    return run_stage(session, "base", {"corpus": corpus} if session.config.model.source == "tiny" else {})


@_stage_task()
def sft(session: RunSession, base: Made, demonstrations: Made) -> "State[Made]":
    """Fine-tune the base model (or experts that a diagnosis selected) on the curated demonstrations."""
    experts = expert_inputs(session.store, session.config)
    return run_stage(session, "sft", {"base": base, "demonstrations": demonstrations, **experts})


@_stage_task()
def diagnose(session: RunSession, model: Made) -> "State[Made]":
    """Route texts of several domains through a mixture-of-experts model, and select experts."""
    return run_stage(session, "diagnose", {"model": model})


@_stage_task()
def select(session: RunSession, tasks: Made, corpus: Made, policy: Made, base: Made) -> "State[Made]":
    """Choose the training tasks that can teach the policy something."""
    return run_stage(session, "select", {"tasks": tasks, "corpus": corpus, "policy": policy, "base": base})


@_stage_task()
def rl(session: RunSession, policy: Made, tasks: Made, selected: Made, corpus: Made) -> "State[Made]":
    """Train the policy on episodes of its own, with tools."""
    return run_stage(session, "rl", {"policy": policy, "tasks": tasks, "selected": selected, "corpus": corpus})


@_stage_task(run_name="evaluate {variant}")
def evaluate(session: RunSession, variant: str, **inputs: Made) -> "State[Made]":
    """Measure a model (or the baselines without one) on held-out tasks."""
    return run_stage(session, "evaluate", inputs, variant)


@task(
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=exponential_backoff(5),
    task_run_name="champion",
)
def champion(session: RunSession, challenger: Made) -> Champion | None:
    """The champion to beat: the registry's, or, where the challenger is that already, the one it beat."""
    if challenger is None:
        return None
    return Registry.of(session.config).opponent(challenger)


@task(
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=exponential_backoff(5),
    task_run_name="champion",
)
def present_champion(session: RunSession) -> Champion | None:
    """The registry's champion."""
    return Registry.of(session.config).champion()


@task(
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=exponential_backoff(5),
    retry_condition_fn=_not_the_users_mistake,
    task_run_name="what is new",
)
def growth(session: RunSession, pool: str, version: int | None) -> Retraining:
    """The pool's versions, the champion, and how much of the pool it knows."""
    return plan_retraining(session.store, Registry.of(session.config), pool, version)


@task(cache_policy=NO_CACHE, persist_result=False, task_run_name="enough to decide on")
def undecidable(session: RunSession, growth: Retraining, tasks: Made) -> dict[str, Any] | None:
    """What the gate would say of too few new tasks, before anything is trained; None if it can decide."""
    if tasks is None or "register" not in session.stages:
        return None
    return growth.refusal(session.store.manifest(tasks).metrics, session.config)


@_stage_task()
def register(
    session: RunSession,
    challenger: Made,
    challenger_evaluation: Made,
    champion: Made,
    champion_evaluation: Made,
    **grown: Made,
) -> "State[Made]":
    """Register the challenger as champion if it wins on the gate split (`tasks`: if it wins on the new tasks there)."""
    return run_stage(
        session,
        "register",
        {
            "challenger": challenger,
            "challenger_evaluation": challenger_evaluation,
            "champion": champion,
            "champion_evaluation": champion_evaluation,
            **grown,
        },
    )
