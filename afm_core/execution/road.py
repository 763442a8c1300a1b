"""The road of a run: its stages in order, and which of them a run makes when it ends before the last.

The flow submits the whole road whatever its end; stages beyond it give nothing. So the flow reads like the diagram, and
the plan and the flow cannot disagree about what a run makes.
"""

from enum import StrEnum

from afm_core.config import ConfigError, RunConfig, TeacherKind, nearest


class RoadStage(StrEnum):
    """The stages that a run can end with, in the order of the road (`afm run --until`)."""

    CORPUS = "corpus"
    TASKS = "tasks"
    TEACH = "teach"
    CURATE = "curate"
    BASE = "base"
    SFT = "sft"
    SELECT = "select"
    RL = "rl"


def road_stage(name: str) -> RoadStage:
    """The stage of that name; raises ConfigError with the nearest one."""
    try:
        return RoadStage(name)
    except ValueError:
        known = [stage.value for stage in RoadStage]
        raise ConfigError(
            f"a run cannot end with {name!r}{nearest(name, known)}; its stages are {', '.join(known)} "
            "(evaluation and registration follow once a model is trained)"
        ) from None


def teaching_stage(config: RunConfig) -> str:
    """The stage that demonstrates in a run: `teach`, or `rollout` where the language-model team teaches."""
    return "rollout" if config.teacher.kind is TeacherKind.TEAM else RoadStage.TEACH.value


def stages_until(end: RoadStage, config: RunConfig) -> frozenset[str]:
    """The names of the stages that a run makes.

    Evaluation and registration belong to the end of a road that has a trained model. With `rl.steps` = 0 there is
    nothing that a selection could be for, unless it is asked for by name.
    """
    order = list(RoadStage)
    made = {stage.value for stage in order[: order.index(end) + 1]}
    if RoadStage.TEACH.value in made:
        made = made - {RoadStage.TEACH.value} | {teaching_stage(config)}
    if config.rl.steps == 0:
        made -= {RoadStage.RL.value}
        if end is not RoadStage.SELECT:
            made -= {RoadStage.SELECT.value}
    if RoadStage.SFT.value in made:
        made |= {"evaluate", "register"}
    return frozenset(made)
