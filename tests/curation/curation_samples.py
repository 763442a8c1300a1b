"""Tasks and trajectories for curation's tests, made without a teacher."""

from afm_core.data import (
    AgentTask,
    Difficulty,
    Origin,
    Segment,
    SolutionStep,
    Split,
    Status,
    Tag,
    Trajectory,
    text_sha256,
)


def task_of(
    city: str, country: str, *, split: Split = Split.TRAIN, relation: str = "country", question: str = ""
) -> AgentTask:
    """A task of one hop whose component is the country."""
    return AgentTask.create(
        question or f"What is the {relation} of {city}?",
        (country,),
        solution=(SolutionStep(relation=relation, subject=city, value=country),),
        difficulty=Difficulty(hops=1),
        component=country.casefold(),
        split=split,
    )


def chain_of(city: str, country: str, currency: str, *, split: Split = Split.TRAIN) -> AgentTask:
    """A task of two hops: it shows that the relation country leads to entities."""
    return AgentTask.create(
        f"What is the currency of the country of {city}?",
        (currency,),
        solution=(
            SolutionStep(relation="country", subject=city, value=country),
            SolutionStep(relation="currency", subject=country, value=currency, inputs=(0,)),
        ),
        difficulty=Difficulty(hops=2),
        component=country.casefold(),
        split=split,
    )


def teacher(tag: Tag, text: str, *, mistake: bool = False) -> Segment:
    """A segment of the teacher."""
    return Segment(origin=Origin.TEACHER, tag=tag, text=text, mistake=mistake)


def seen(text: str) -> Segment:
    """An observation."""
    return Segment(origin=Origin.TOOL, tag=Tag.OBSERVATION, text=text)


def look_up(task: AgentTask) -> list[Segment]:
    """Segments that look the first step up and answer with the task's answer."""
    step = task.solution[0]
    return [
        teacher(Tag.THINK, f"{step.relation} of {step.subject}"),
        teacher(Tag.WEB_SEARCH, f"{step.subject} {step.relation}"),
        seen(f"{step.subject}: belongs to {task.answers[0]}."),
    ]


def closing(answer: str, *, score: int = 4) -> list[Segment]:
    """Suggestion, check, and the answer if the score is high."""
    segments = [
        teacher(Tag.THINK, f"{answer}. Done."),
        teacher(Tag.SUGGESTED_ANSWER, answer),
        teacher(Tag.DOUBLE_CHECK, f"Score: {score}"),
    ]
    return [*segments, teacher(Tag.ANSWER, answer)] if score > 2 else segments


def trajectory_of(task: AgentTask, segments: list[Segment] | None = None, **fields: object) -> Trajectory:
    """A trajectory of the task, by default a right one; its id follows from its text."""
    segments = segments if segments is not None else [*look_up(task), *closing(task.answers[0])]
    text = "".join(f"{segment.tag}{segment.text}" for segment in segments)
    defaults: dict[str, object] = {
        "id": text_sha256(task.id + text)[:16],
        "task_id": task.id,
        "question": task.question,
        "answer": segments[-1].text if segments[-1].tag == Tag.ANSWER else None,
        "grammar": "web",
        "source": "test",
        "segments": tuple(segments),
        "status": Status.COMPLETED,
        "reward": 1.0,
    }
    return Trajectory.model_validate({**defaults, **fields})


def reflecting(task: AgentTask) -> Trajectory:
    """A trajectory with a marked wrong query, a reflection and the right answer."""
    step = task.solution[0]
    segments = [
        teacher(Tag.THINK, f"{step.relation} of {step.subject}", mistake=True),
        teacher(Tag.WEB_SEARCH, f"{step.subject} size", mistake=True),
        seen("No results."),
        teacher(Tag.THINK, "Wrong query."),
        teacher(Tag.REFLECTION, f"Results lack the {step.relation}: fair."),
        *look_up(task)[1:],
        *closing(task.answers[0]),
    ]
    return trajectory_of(task, segments)
