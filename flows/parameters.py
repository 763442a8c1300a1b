"""The types of the flows' parameters. Their schema is the form in which the Prefect UI asks for them.

A profile stays a text with suggestions, no closed set: the form offers the shipped ones, the run refuses an unknown one
with the nearest name.
"""

from typing import Annotated

from pydantic import Field

from afm_core.config import profile_names
from afm_core.execution import STAGES

ProfileName = Annotated[str, Field(description="A shipped profile.", json_schema_extra={"enum": list(profile_names())})]
StageName = Annotated[str, Field(description="A stage.", json_schema_extra={"enum": list(STAGES)})]
Override = Annotated[str, Field(description="section.key=value over the profile", examples=["sft.learning_rate=1e-4"])]
ModelName = Annotated[
    str, Field(description="champion, a digest, or a source: a directory, s3://bucket/path, a hub id.", min_length=1)
]
Domains = Annotated[
    dict[str, str], Field(description="Domain name -> file of its texts.", examples=[{"code": "/data/code.jsonl"}])
]
