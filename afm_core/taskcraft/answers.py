"""All answers that are right: the stated value first, then the ways in which people write the same value."""

from afm_core.taskcraft.relations import Kind, Relation
from afm_core.tools.text import fold


def accepted_answers(relation: Relation | None, value: str) -> tuple[str, ...]:
    """Accepted answers for a value of `relation` (None: an entity's name), without repetition."""
    forms = [value]
    if relation is not None and relation.numeric:
        grouped = f"{int(value):,}"
        forms.append(grouped)
        if relation.unit:
            forms += [f"{value} {relation.unit}", f"{grouped} {relation.unit}"]
    elif relation is not None and relation.value in (Kind.CALLING_CODE, Kind.DOMAIN):
        forms.append(value.lstrip("+."))
    elif fold(value) != value.casefold():
        forms.append(_unaccented(value))
    return tuple(dict.fromkeys(forms))


def _unaccented(value: str) -> str:
    folded = fold(value)
    if len(folded) != len(value):
        return folded.title()
    return "".join(
        plain.upper() if original.isupper() else plain for plain, original in zip(folded, value, strict=True)
    )
