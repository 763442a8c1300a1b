"""Document: frozen text that tasks are made from and verified against."""

import hashlib
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Document(BaseModel):
    """One frozen document. `component` names the connected component of entities it belongs to (splits follow it)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    title: str = Field(min_length=1)
    text: str
    url: str = ""
    licence: str = ""
    component: str = ""
    sha256: str

    @model_validator(mode="after")
    def _hash_matches_text(self) -> Self:
        expected = text_sha256(self.text)
        if self.sha256 != expected:
            raise ValueError(f"document {self.id!r}: sha256 does not match its text")
        return self

    @classmethod
    def create(cls, id: str, title: str, text: str, **fields: Any) -> Self:
        """Build a document and compute its hash."""
        return cls(id=id, title=title, text=text, sha256=text_sha256(text), **fields)


def text_sha256(text: str) -> str:
    """SHA-256 of the UTF-8 text, 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()
