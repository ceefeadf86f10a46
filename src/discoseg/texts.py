"""Small files of text from anywhere: their size is looked at before they are read, and their nesting is bounded."""

import json
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from discoseg.errors import UserError

MOST_BYTES = 64 * 2**20
MOST_TOML_BYTES = 2**20  # tomllib's time can grow with the square of the length
_MOST_DIGITS = 20  # of a whole number, with its sign; one that no float can hold would be a surprise later


def read_bytes(path: Path, *, most: int = MOST_BYTES) -> bytes:
    """Return what a file holds, ``most`` bytes at most; a pipe or a device is no file. An OSError as open has it."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise UserError(f"{path} is not a file")
    with path.open("rb") as file:
        content = b"" if about.st_size > most else file.read(most + 1)
    if about.st_size > most or len(content) > most:
        raise UserError(f"{path} is too large: a file of its kind has at most {most >> 20} MiB")
    return content


def parse_json(text: str | bytes, *, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Return what JSON says; a ValueError where it is none, is nested too deeply, or has a whole number of many digits.

    ``pairs`` makes the objects.
    """
    try:
        return json.loads(text, object_pairs_hook=pairs, parse_int=_parse_int)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _parse_int(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def read_json(path: Path) -> Any:
    """Return what a JSON file says (UTF-8, with or without a byte-order mark); an OSError or ValueError otherwise."""
    return parse_json(read_bytes(path).decode("utf-8-sig"))


def parse_toml(text: str) -> dict[str, Any]:
    """Return what TOML says; a ValueError where it is none, or nested too deeply."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file says; a :class:`UserError` where it is none."""
    try:
        return parse_toml(read_bytes(path, most=MOST_TOML_BYTES).decode("utf-8"))
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from error
