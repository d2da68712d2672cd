"""What differs between two plans."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fuel_core.config import Fate, LedgerEntry
from fuel_core.inspection.layer_kinds import spread_text
from fuel_core.inspection.plain_data import plain
from fuel_core.inspection.plan_report import PlanReport, model_scalars, recipe


class _Absent:
    """The type of ABSENT."""

    def __repr__(self) -> str:
        return "(absent)"


ABSENT: Final = _Absent()
"""Stands where one side has no value, which is not the value null."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that two plans do not have alike; ``ABSENT`` where a side lacks it."""

    section: str
    key: str
    a: object
    b: object

    def as_dict(self) -> dict[str, Any]:
        """For JSON: ``section``, ``key``, ``a`` and ``b``; a side that lacks it is left out."""
        sides = {side: value for side, value in (("a", self.a), ("b", self.b)) if value is not ABSENT}
        return {"section": self.section, "key": self.key, **sides}


def differences(a: PlanReport, b: PlanReport) -> tuple[Difference, ...]:
    """All that differs: who reads the files, their keys with the defaults of absent ones, options, plan,
    numerics, ledger.

    Not the values of irrelevant keys: they change nothing.
    """
    return tuple(
        Difference(section=section, key=key, a=one, b=other)
        for (section, ours), (_, theirs) in zip(_sections(a), _sections(b), strict=True)
        for key, one, other in _unlike(ours, theirs)
    )


def _unlike(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, object, object]]:
    """The keys whose values differ; those of dicts on both sides one by one, joined by dots."""
    for key in {**ours, **theirs}:
        one, other = ours.get(key, ABSENT), theirs.get(key, ABSENT)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _unlike(one, other, f"{prefix}{key}.")
        # false and 0 are equal to Python and two things in a config.json
        elif one != other or isinstance(one, bool) != isinstance(other, bool):
            yield f"{prefix}{key}", one, other


def _sections(report: PlanReport) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What is compared, by section."""
    plan, reading = report.plan, report.reading
    yield "family", {"family": reading.family.name, "plugin": str(report.plugin)}
    yield "config", plain(reading.config.model_dump())
    yield "options", plain(reading.options)
    yield (
        "plan",
        {
            **model_scalars(plan),
            "position_limit": plan.position_limit,
            "parameters": report.parameters.count,
            "weight_bytes": report.parameters.bytes,
            "cache_bytes_per_token": report.cache["bytes_per_token"],
            "window": spread_text([plan.mask.window(layer) for layer in range(plan.mask.layers)], _or_none),
            "slots": spread_text(plan.cache.layers),
            "mixer": spread_text([layer.mixer for layer in plan.layers]),
            "feed_forward": spread_text([layer.feed_forward for layer in plan.layers]),
            "parallel": spread_text([layer.parallel for layer in plan.layers]),
            "rope": spread_text(plan.rope.per_layer, _or_none),
            "rope_recipe": {str(n): recipe(variant) for n, variant in enumerate(plan.rope.variants)},
        },
    )
    yield "numerics", plain(plan.numerics)
    yield "ledger", {entry.key: _fate(entry) for entry in reading.ledger}


def _or_none(value: int | None) -> str:
    return "none" if value is None else str(value)


def _fate(entry: LedgerEntry) -> str:
    """A refused key may matter, so its value counts."""
    return f"refused at {entry.value!r}" if entry.fate is Fate.REFUSED else entry.fate.value
