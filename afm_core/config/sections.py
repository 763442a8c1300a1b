"""The sections of a run's configuration, one frozen model each.

Everything here enters the stage keys of the stages that declare the section (see afm_core.execution), except fields
marked with `NOT_IN_KEY`: places (URIs), concurrency and anything else that cannot change a result. Secrets are never
configuration: they come from the environment.
"""

from enum import StrEnum
from typing import Literal, Self

from pydantic import Field, model_validator

from afm_core.config.base import NOT_IN_KEY, Dtype, Positive, Section, Share, TrainerConfig
from afm_core.config.moe import DiagnoseConfig, ExpertsConfig
from afm_core.config.reinforcement import RlConfig, RolloutConfig, SelectionConfig
from afm_core.config.teacher import TeacherKind, TeamConfig


class GrammarName(StrEnum):
    """The profiles of the chain-of-agents grammar."""

    MHQA = "mhqa"
    WEB = "web"
    CODE = "code"
    MULTI_TOOL = "multi_tool"


class StoreConfig(Section):
    """Where artifacts live: a directory or s3://bucket/prefix. Empty: `$AFM_HOME/store`."""

    uri: str = Field(default="", json_schema_extra=NOT_IN_KEY)


class CorpusConfig(Section):
    """The documents. `world`: facts from offline packages; `micro`: a few invented entities for the smoke profile."""

    source: Literal["world", "micro"] = "world"
    minimum_city_population: int = Field(default=150_000, ge=0)
    seed: int = 0


class SplitCounts(Section):
    """How many tasks a split gets."""

    train: int = Field(default=360, ge=1)
    dev: int = Field(default=60, ge=1)
    gate: int = Field(default=100, ge=1)
    test: int = Field(default=360, ge=1)


class TasksConfig(Section):
    """Task generation over the corpus. `hop_weights[i]` is the share of tasks with i + 1 hops.

    `guessable_share` caps the share of tasks whose answer comes from a small set (continent, currency, comparisons),
    so that accuracy means finding, not guessing. `file`: a JSONL or parquet of the user's own tasks instead; its
    content counts (`file_sha256`, filled in when the configuration is loaded), not its name.
    """

    counts: SplitCounts = SplitCounts()
    hop_weights: tuple[float, ...] = (0.30, 0.35, 0.25, 0.10)
    comparison_share: Share = 0.06
    guessable_share: Share = 0.15
    held_out_share: Share = 0.25
    seed: int = 0
    file: str | None = Field(default=None, json_schema_extra=NOT_IN_KEY)
    file_sha256: str | None = None


class SplitShares(Section):
    """The share of entity groups that each split of a task pool gets."""

    train: float = Field(default=0.7, gt=0, lt=1)
    dev: float = Field(default=0.05, gt=0, lt=1)
    gate: float = Field(default=0.15, gt=0, lt=1)
    test: float = Field(default=0.1, gt=0, lt=1)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        total = self.train + self.dev + self.gate + self.test
        if abs(total - 1) > 1e-9:
            raise ValueError(f"train, dev, gate and test must add up to 1, not {total:g}")
        return self


class PoolConfig(Section):
    """Task pools: how new rows are dealt to the splits, and which benchmarks no training row may come from.

    `benchmarks`: JSONL or parquet files with a field `question`, `problem` or `prompt`. Both are read when rows are
    added (`afm tasks add`), never by a stage: a row keeps the split that it was published with.
    """

    shares: SplitShares = SplitShares()
    benchmarks: tuple[str, ...] = ()


class PromptStyle(StrEnum):
    """full: the whole language explained; brief: one line, for models that learned the language."""

    FULL = "full"
    BRIEF = "brief"


class Budget(Section):
    """Limits of one episode. `seconds` is wall-clock time from its first request."""

    turns: Positive = 16
    turn_tokens: Positive = 96
    total_tokens: Positive = 1024
    tool_calls: Positive = 12
    seconds: float = Field(default=600.0, gt=0)
    observation_tokens: Positive = 160


class AgentConfig(Section):
    """How the policy and the teacher act: language profile, prompt, tools and budgets.

    `tools` binds a tag of the language to a tool's name, e.g. {"web_search": "search_local"}.
    """

    grammar: GrammarName = GrammarName.WEB
    prompt: PromptStyle = PromptStyle.BRIEF
    tools: dict[str, str] = Field(default={"web_search": "search_local", "crawl_page": "read_local"})
    search_results: Positive = 3
    budget: Budget = Budget()


class TeacherConfig(Section):
    """Who teaches in a run; of the solution teacher, how often it errs (and recovers), and its seed.

    `kind` decides between two stages with keys of their own, so it is in neither.
    """

    kind: TeacherKind = Field(default=TeacherKind.SOLUTION, json_schema_extra=NOT_IN_KEY)

    mistake_rate: Share = 0.15
    seed: int = 0
    concurrency: Positive = Field(default=8, json_schema_extra=NOT_IN_KEY)


class CurationConfig(Section):
    """The four filters and the mixing that follows them.

    minimum_interactions: agent and tool activations below which a trajectory is dropped (paper: 5).
    without_reflection_share: share of trajectories without reflection that is kept, 1 keeps all.
    correction_copies: how many times a trajectory that corrected itself is repeated (1: once).
    maximum: trajectories that are kept at most, before copies (None: all); a small, good mix can be enough.
    replay_share: share of the mix that old demonstrations may be when a retraining goes on from the champion, which
    has learned them already (1: all of them are shown again). From the base model all are new.
    """

    minimum_interactions: int = Field(default=3, ge=0)
    without_reflection_share: Share = 1.0
    correction_copies: Positive = 1
    guessable_share: Share = 0.2
    maximum: Positive | None = None
    replay_share: Share = 0.5
    seed: int = 0


class ModelConfig(Section):
    """The base model: `tiny` (random, smoke only), `smollm2-135m`, a directory, an object-store URI or a hub id."""

    source: str = "smollm2-135m"
    seed: int = 0


class SftStart(StrEnum):
    """The model that a retraining fine-tunes (`afm retrain`; `afm run` always begins at the base model)."""

    BASE = "base"
    """The base model, on all demonstrations, old and new."""
    CHAMPION = "champion"
    """The champion (the base model where there is none), on the new demonstrations and a share of the old ones."""


class SftConfig(TrainerConfig):
    """Supervised fine-tuning. A step trains `batch_trajectories` trajectories of at most `max_tokens` tokens.

    The schedule is a linear warm-up over `warmup_share` of the steps, then a cosine to `final_learning_rate_share`.
    `start` is for retraining; the model that it names is an input of the stage, so it needs no place in the key.
    """

    start: SftStart = Field(default=SftStart.BASE, json_schema_extra=NOT_IN_KEY)

    epochs: float = Field(default=1.0, gt=0)
    batch_trajectories: Positive = 8
    max_tokens: Positive = 1024
    warmup_share: Share = 0.1
    final_learning_rate_share: Share = 0.1
    mask_observations: bool = True
    train_mistakes: bool = False
    keep_best: int = Field(default=0, ge=0)
    experts: ExpertsConfig | None = None

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if self.experts is not None and self.lora is not None:
            raise ValueError("experts and lora exclude each other: both say what is trained")
        if self.experts is not None and self.zero_stage == 3:
            raise ValueError("experts needs zero_stage 0, 1 or 2: stage 3 would partition the fused experts")
        if self.max_tokens > self.micro_batch_tokens:
            raise ValueError("max_tokens must not exceed micro_batch_tokens: the longest trajectory must fit a batch")
        return self


class EngineKind(StrEnum):
    """What generates tokens."""

    TRANSFORMERS = "transformers"
    VLLM = "vllm"
    OPENAI = "openai"


class EngineConfig(Section):
    """The engine of rollouts and evaluation. `base_url` and `model` are for the openai kind."""

    kind: EngineKind = EngineKind.TRANSFORMERS
    dtype: Dtype = Dtype.FP32
    threads: Positive = 2
    gpus: int = Field(default=0, ge=0)
    slots: Positive = 32
    max_length: Positive = 1536
    base_url: str = Field(default="", json_schema_extra=NOT_IN_KEY)
    model: str = ""


class EvaluationConfig(Section):
    """Which tasks are evaluated and how. Limits are task counts of a split; None is the whole split.

    `maximum_unscored` is the share of unscored tasks above which the gate refuses.
    """

    test_limit: Positive | None = None
    gate_limit: Positive | None = None
    baseline_limit: Positive | None = 60
    few_shot: Positive = 3
    temperature: float = Field(default=0.0, ge=0)
    shard_size: Positive = 64
    seed: int = 0


class RegistryConfig(Section):
    """The MLflow registered model and the rule for a new champion.

    Retraining judges new and old gate tasks apart: a gain of more than `minimum_gain` on the new ones, a loss of at
    most `maximum_regression` on the old ones, and at least so many new ones that a win could be told from chance at
    the level `significance` (see afm_core.evaluation.gate.tasks_needed).
    """

    model_name: str = "afm"
    minimum_gain: float = Field(default=0.0, ge=0, le=1)
    maximum_unscored: Share = 0.01
    maximum_regression: Share = 0.02
    significance: float = Field(default=0.05, gt=0, lt=1)


class TrackingConfig(Section):
    """MLflow. Empty uri: SQLite in `$AFM_HOME/mlflow.db`, or MLFLOW_TRACKING_URI when set."""

    enabled: bool = Field(default=True, json_schema_extra=NOT_IN_KEY)
    uri: str = Field(default="", json_schema_extra=NOT_IN_KEY)
    experiment: str = Field(default="afm", json_schema_extra=NOT_IN_KEY)


class Runner(StrEnum):
    """Where a stage's process runs."""

    PROCESS = "process"
    """A child of the run's process, on this machine."""
    RAY_JOB = "ray_job"
    """A job of a Ray cluster, through its Jobs API."""


class ExecutionConfig(Section):
    """How stages are run. `ray_address`: empty starts one local Ray per run. Seconds and bytes as named.

    For runner `ray_job`: `ray_dashboard` is the address of the cluster's dashboard (empty: $AFM_RAY_DASHBOARD);
    `ray_working_dir` a directory or package URI that brings the code to the cluster (empty: it is installed there);
    `ray_job_cpus` and `ray_job_gpus` what a stage's own process takes, beside the Ray workers it asks for;
    `ray_job_stop_seconds` what a stage has to seal a checkpoint between SIGTERM and SIGKILL.
    Prices are for the spend that `afm runs show` tells: of an hour of any stage, of a million sampled tokens.
    """

    runner: Runner = Field(default=Runner.PROCESS, json_schema_extra=NOT_IN_KEY)
    ray_dashboard: str = Field(default="", json_schema_extra=NOT_IN_KEY)
    ray_working_dir: str = Field(default="", json_schema_extra=NOT_IN_KEY)
    ray_job_cpus: float = Field(default=0.0, ge=0, json_schema_extra=NOT_IN_KEY)
    ray_job_gpus: float = Field(default=0.0, ge=0, json_schema_extra=NOT_IN_KEY)
    ray_job_stop_seconds: Positive = Field(default=60, json_schema_extra=NOT_IN_KEY)
    price_per_hour: float = Field(default=0.0, ge=0, json_schema_extra=NOT_IN_KEY)
    price_per_million_tokens: float = Field(default=0.0, ge=0, json_schema_extra=NOT_IN_KEY)
    parallel_stages: Positive = Field(default=1, json_schema_extra=NOT_IN_KEY)
    stage_timeout_seconds: float = Field(default=7200.0, gt=0, json_schema_extra=NOT_IN_KEY)
    ray_address: str = Field(default="", json_schema_extra=NOT_IN_KEY)
    ray_cpus: Positive = Field(default=2, json_schema_extra=NOT_IN_KEY)
    ray_object_store_bytes: Positive = Field(default=120_000_000, json_schema_extra=NOT_IN_KEY)
    wait_for_lease: bool = Field(default=True, json_schema_extra=NOT_IN_KEY)


class RunConfig(Section):
    """A whole run: one section a concern. `profile` names the file it came from."""

    profile: str
    store: StoreConfig = StoreConfig()
    corpus: CorpusConfig = CorpusConfig()
    tasks: TasksConfig = TasksConfig()
    pool: PoolConfig = PoolConfig()
    agent: AgentConfig = AgentConfig()
    teacher: TeacherConfig = TeacherConfig()
    team: TeamConfig = TeamConfig()
    curation: CurationConfig = CurationConfig()
    model: ModelConfig = ModelConfig()
    sft: SftConfig = SftConfig()
    diagnose: DiagnoseConfig = DiagnoseConfig()
    selection: SelectionConfig = SelectionConfig()
    rl: RlConfig = RlConfig()
    rollout: RolloutConfig = RolloutConfig()
    engine: EngineConfig = EngineConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    registry: RegistryConfig = RegistryConfig()
    tracking: TrackingConfig = TrackingConfig()
    execution: ExecutionConfig = ExecutionConfig()

    @model_validator(mode="after")
    def _team_has_a_model(self) -> Self:
        if self.teacher.kind is TeacherKind.TEAM and not self.team.served:
            raise ValueError("teacher.kind is 'team', which needs a language model: set team.endpoints")
        return self

    @model_validator(mode="after")
    def _reinforcement_fits(self) -> Self:
        if self.rl.overlong_buffer > self.agent.budget.total_tokens:
            raise ValueError("rl.overlong_buffer must not exceed agent.budget.total_tokens, which it ends at")
        if self.rl.maximum_staleness and not self.rollout.workers:
            raise ValueError("rl.maximum_staleness > 0 is asynchronous and needs rollout.workers of at least 1")
        if self.rl.maximum_staleness and self.rollout.deterministic:
            raise ValueError("asynchronous rl (rl.maximum_staleness > 0) needs rollout.deterministic=false")
        return self
