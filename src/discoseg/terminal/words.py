"""Durations in words, and what commands found out as JSON."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def say_seconds(seconds: float) -> str:
    """Write a duration in the two largest units that matter.

    >>> [say_seconds(s) for s in (0.42, 59.6, 112, 7_500)]
    ['0.4 s', '1 min 0 s', '1 min 52 s', '2 h 5 min']
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def to_json(document: Mapping[str, Any]) -> str:
    """Return a document as JSON that every parser takes: numbers that are not finite become null, paths strings.

    >>> to_json({"run": Path("runs/lv"), "dice": math.nan, "sizes": (1, 2.5)})
    '{"run": "runs/lv", "dice": null, "sizes": [1, 2.5]}'
    """
    return json.dumps(_plain(document), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float):  # numpy's float64 is one, too
        return float(value) if math.isfinite(value) else None
    return value
