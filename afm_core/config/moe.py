"""The sections of mixture-of-experts models: diagnosing their routing, training some of their experts."""

import re
from typing import Self

from pydantic import Field, model_validator

from afm_core.config.base import NOT_IN_KEY, Dtype, Positive, Section, Share


class ExpertsConfig(Section):
    """Fine-tune only the experts that a diagnosis selected for a domain (docs/experts.md).

    `diagnosis` is a digest (or its first digits) of an artifact that `afm diagnose` made; the artifact is an input of
    the stage, so its name needs no place in the key. `score`: token, gate, contribution, path, or a control (random,
    load). `router`: the routers are trained, too. `drift_tokens`: on so many tokens of the training rows the routing
    is compared before and after.
    """

    diagnosis: str = Field(min_length=1, json_schema_extra=NOT_IN_KEY)
    domain: str
    score: str = "contribution"
    router: bool = False
    drift_tokens: Positive = 2048


class DiagnoseConfig(Section):
    """Routing of a model on texts of several domains.

    domains: name -> file of texts (JSONL or parquet with a column `text`, or plain text: one document); their content
    counts (`sha256`, filled in when the configuration is loaded), not their names. background: the domain that the
    others are compared with; empty: all of them in equal parts. Selections: the fewest experts a layer with `mass` of
    the score and at least `minimum_lift` of the background's use, of at most `maximum_share` of the model's parameters.
    """

    domains: dict[str, str] = Field(default_factory=dict, json_schema_extra=NOT_IN_KEY)
    sha256: dict[str, str] = Field(default_factory=dict)
    background: str = ""
    tokens: Positive = 200_000
    sample_tokens: Positive = 32_768
    sequence_tokens: Positive = 512
    batch_tokens: Positive = 4096
    mass: float = Field(default=0.5, gt=0, le=1)
    minimum_lift: float = Field(default=1.0, ge=0)
    maximum_share: Share = 0.25
    ngrams: tuple[int, ...] = (2, 5, 10)
    noise: float = Field(default=0.05, ge=0)
    dtype: Dtype = Dtype.FP32
    threads: Positive = 2
    gpus: int = Field(default=0, ge=0)
    seed: int = 0

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if bad := [name for name in self.domains if not re.fullmatch(r"[A-Za-z0-9_-]+", name)]:
            raise ValueError(f"domains: a name has letters, digits, - and _ (got {bad[0]!r}): it names files")
        if self.background and self.domains and self.background not in self.domains:
            raise ValueError(f"background {self.background!r} is none of the domains {', '.join(self.domains)}")
        if any(n < 2 for n in self.ngrams):
            raise ValueError("ngrams: windows have at least 2 tokens")
        if self.sequence_tokens > self.batch_tokens:
            raise ValueError("sequence_tokens must not exceed batch_tokens: a sequence must fit a batch")
        return self
