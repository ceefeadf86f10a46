"""Nested dataclasses as plain values and TOML, and back, with errors that name the setting."""

import dataclasses
import types
import typing
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from discoseg.errors import UserError

T = TypeVar("T")


def from_dict(values: dict[str, Any], *, base: T, where: str) -> T:
    """Return ``base`` with nested ``values`` put over it; ``where`` is named in errors."""
    hints = typing.get_type_hints(type(base))
    changes: dict[str, Any] = {}
    for key, value in values.items():
        if key not in hints:
            raise UserError(f"{where}: unknown setting {key!r}; known are {', '.join(hints)}")
        current = getattr(base, key)
        if is_dataclass(current) and not isinstance(current, type):
            if not isinstance(value, dict):
                raise UserError(f"{where}: {key} must be a table, not {value!r}")
            changes[key] = from_dict(value, base=current, where=f"{where}: {key}")
        else:
            changes[key] = _convert(value, hints[key], f"{where}: {key}")
    try:
        return dataclasses.replace(base, **changes)  # type: ignore[type-var]
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _convert(value: Any, hint: Any, where: str) -> Any:
    """Bring a TOML value to the type of a field, or say what was expected."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(value, int) and value.bit_length() > 63:
        raise UserError(f"{where} is a whole number of {value.bit_length()} bits: expected 63 at most")
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _convert(value, arguments[0], where)
    if origin is Literal and value in arguments:
        return value
    if origin is tuple and isinstance(value, list | tuple) and len(value) == len(arguments):
        return tuple(_convert(v, a, where) for v, a in zip(value, arguments, strict=True))
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is Path and isinstance(value, str | Path):
        return Path(value)
    if hint in (int, bool, str) and type(value) is hint:
        return value
    expected = f"one of {arguments}" if origin is Literal else getattr(hint, "__name__", str(hint))
    raise UserError(f"{where} = {value!r}: expected {expected}")


def to_dict(config: Any) -> dict[str, Any]:
    """Return a configuration as nested plain values (str, int, float, bool, list); what is None is left out."""
    out: dict[str, Any] = {}
    for item in fields(config):
        value = getattr(config, item.name)
        if is_dataclass(value):
            out[item.name] = to_dict(value)
        elif isinstance(value, tuple):
            out[item.name] = list(value)
        elif value is not None:
            out[item.name] = str(value) if isinstance(value, Path) else value
    return out


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted names, tuples as lists.

    >>> flatten({"seed": 1, "crf": {"sigma": 0.1}})
    {'seed': 1, 'crf.sigma': 0.1}
    """
    out: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            out |= flatten(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = list(value) if isinstance(value, tuple) else value
    return out


def to_toml(config: Any) -> str:
    """Return a configuration as TOML that :func:`discoseg.presets.load_config` reads back to an equal one."""
    values = to_dict(config)
    lines = [f"{key} = {_toml(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for key, table in values.items():
        if isinstance(table, dict) and table:
            lines += ["", f"[{key}]", *(f"{name} = {_toml(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return repr(value)
