"""An explanation as text or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from inferencecache.doctor.explain.decide import Candidate, Explanation
from inferencecache.doctor.explain.drift import Change
from inferencecache.webhooks.injection import Outcome


def as_json(told: Explanation) -> str:
    """The JSON form, whose keys stay as they are."""
    document: dict[str, Any] = {
        "pod": str(told.pod),
        "state": told.state.value,
        "summary": told.summary,
        "backends": [
            {
                "name": one.name,
                "selects": one.selects,
                "responsible": one.responsible,
                "lackingLabels": list(one.lacking),
                "remark": one.remark,
            }
            for one in told.candidates
        ],
        "annotations": [{"name": one.name, "value": one.value, "verdict": one.verdict} for one in told.marks],
        "now": {
            "outcome": told.now.outcome.value,
            "reason": told.now.reason,
            "message": told.now.message,
            "backend": told.now.backend,
        },
        "drift": _drift(told.drift),
        "pool": None
        if told.pool is None
        else {
            "state": told.pool.state.value,
            "summary": told.pool.summary,
            "record": dict(told.pool.record),
            "against": list(told.pool.against),
            "drift": _drift(told.pool.drift),
        },
        "events": [{"reason": reason, "message": message} for reason, message in told.told],
        "notes": list(told.notes),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _drift(changes: Sequence[Change]) -> list[dict[str, str | None]]:
    return [{"path": one.path, "before": one.before, "after": one.after} for one in changes]


def as_text(told: Explanation) -> str:
    """The form for people."""
    return "\n".join(_lines(told)) + "\n"


def _lines(told: Explanation) -> Iterator[str]:
    yield f"pod/{told.pod}: {told.summary}"
    yield ""
    yield f"CacheBackends of namespace {told.pod.namespace}:"
    yield from (f"  {one.name}: {_word(one)}" for one in told.candidates)
    if not told.candidates:
        yield "  none"
    yield ""
    yield f"Admitted now, it would be {_now(told)}"
    if told.marks:
        yield ""
        yield "Annotations:"
        yield from (f"  {one.name}: {one.value} ({one.verdict})" for one in told.marks)
    if told.drift:
        yield ""
        yield "What admission would change in it now:"
        yield from _changes(told.drift)
    if told.pool is not None:
        yield ""
        yield f"KV cache pool: {told.pool.summary}"
        yield from (f"  against it: {problem}" for problem in told.pool.against)
        if told.pool.drift:
            yield "  its Binding leads elsewhere by now; only a new Pod follows:"
            yield from _changes(told.pool.drift)
    if told.told:
        yield ""
        yield "Events:"
        yield from (f"  {reason}: {message}" for reason, message in told.told)
    if told.notes:
        yield ""
        yield from (f"Note: {note}" for note in told.notes)


def _changes(drift: Sequence[Change]) -> Iterator[str]:
    for change in drift:
        yield f"  {change.path}"
        if change.before is not None:
            yield f"    - {change.before}"
        if change.after is not None:
            yield f"    + {change.after}"


def _word(one: Candidate) -> str:
    if one.responsible:
        return f"selects the Pod and is responsible for it{'; ' + one.remark if one.remark else ''}"
    if one.selects:
        return f"selects the Pod, but {one.remark}"
    if one.lacking:
        return f"does not select it: the Pod lacks {', '.join(one.lacking)}"
    return f"does not select it: {one.remark}"


def _now(told: Explanation) -> str:
    now = told.now
    if now.outcome is Outcome.WIRED:
        return f"wired to CacheBackend {now.backend}{'' if told.drift else ', just as it is'}"
    return f"{now.outcome.value}: {now.message}"
