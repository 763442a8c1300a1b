"""What of a section enters a stage key: everything that can change a result, nothing else."""

from typing import Any

from pydantic import BaseModel


def key_fields(section: BaseModel) -> dict[str, Any]:
    """A section as JSON values, without the fields marked NOT_IN_KEY, nested sections included."""
    fields: dict[str, Any] = {}
    for name, info in type(section).model_fields.items():
        extra = info.json_schema_extra
        if isinstance(extra, dict) and extra.get("in_key") is False:
            continue
        value = getattr(section, name)
        fields[name] = key_fields(value) if isinstance(value, BaseModel) else _plain(section, name)
    return fields


def _plain(section: BaseModel, name: str) -> Any:
    return section.model_dump(mode="json", include={name})[name]
