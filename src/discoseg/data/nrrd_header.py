"""Headers of NRRD files: read strictly before SimpleITK does, which a long line that is no field makes crash."""

import re
from pathlib import Path

from discoseg.errors import UserError

_MOST_HEADER = 2**20  # bytes
_MOST_LINE = 1000  # characters of a field; SimpleITK reads comments and `key:=value` lines of any length
_MOST_LINES = 10_000  # its time grows by the square of the `key:=value` lines
_NUMBER = r"[-+]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40}|(?i:nan|inf))(?:[eE][-+]?\d{1,4})?"
_VECTOR = rf"(?:none|\(\s*{_NUMBER}(?:\s*,\s*{_NUMBER}){{0,3}}\s*\))"
_WORD = r"[A-Za-z0-9_.+-]{1,40}"
_QUOTED = r'"[^"\\]{0,80}"'
# What a field's values are, and whether there is one for each axis.
_FIELDS: dict[str, tuple[str, bool]] = {
    "dimension": (r"[1-5]", False),
    "sizes": (r"[1-9]\d{0,9}", True),
    "spacings": (_NUMBER, True),
    "thicknesses": (_NUMBER, True),
    "axis mins": (_NUMBER, True),
    "axismins": (_NUMBER, True),
    "axis maxs": (_NUMBER, True),
    "axismaxs": (_NUMBER, True),
    "kinds": (r"[A-Za-z0-9-]{1,40}|\?\?\?", True),
    "centers": (r"[A-Za-z]{1,20}|\?\?\?", True),
    "centerings": (r"[A-Za-z]{1,20}|\?\?\?", True),
    "labels": (_QUOTED, True),
    "units": (_QUOTED, True),
    "space directions": (_VECTOR, True),
    "space origin": (_VECTOR, False),
    "space dimension": (r"[1-4]", False),
    "space": (_WORD, False),
    "encoding": (_WORD, False),
    "endian": (_WORD, False),
    "byte skip": (r"-1|\d{1,10}", False),
    "byteskip": (r"-1|\d{1,10}", False),
    "line skip": (r"\d{1,6}", False),
    "lineskip": (r"\d{1,6}", False),
}
_TEXT = ("type", "content", "number", "min", "max", "old min", "oldmin", "old max", "oldmax", "sample units")
_SEVERAL = ("space units", "measurement frame")  # one for each axis of the world


# What becomes of x, y and z of the world in LPS+.
_WORLDS = {
    "left-posterior-superior": (1, 1, 1),
    "lps": (1, 1, 1),
    "right-anterior-superior": (-1, -1, 1),
    "ras": (-1, -1, 1),
    "left-anterior-superior": (1, -1, 1),
    "las": (1, -1, 1),
}


def read_directions(path: Path) -> tuple[float, ...] | None:
    """Return the steps (9,) of the three axes of a volume in LPS+ mm, axis by axis; None where it has no such three.

    SimpleITK makes lengths and directions of them, of which the products round to others now and then.
    """
    fields = require_nrrd_header(path)
    signs = _WORLDS.get(fields.get("space", "").lower())
    vectors = [text.split(",") for text in re.findall(r"\(([^)]*)\)", fields.get("space directions", ""))]
    if signs is None or [len(vector) for vector in vectors] != [3, 3, 3]:
        return None
    return tuple(sign * float(text) for vector in vectors for sign, text in zip(signs, vector, strict=True))


def put_directions(path: Path, directions: tuple[float, ...]) -> None:
    """Let a file that SimpleITK wrote have these very steps (:func:`read_directions`)."""
    vectors = (",".join(map(repr, directions[at : at + 3])) for at in (0, 3, 6))
    line = f"space directions: {' '.join(f'({vector})' for vector in vectors)}"
    head, end, voxels = path.read_bytes().partition(b"\n\n")
    path.write_bytes(re.sub(rb"(?m)^space directions: .*$", line.encode(), head) + end + voxels)


def require_nrrd_header(path: Path) -> dict[str, str]:
    """Refuse a header with lines that no program writes, and voxels in another file; return the fields by name."""
    with path.open("rb") as file:
        start = file.read(_MOST_HEADER)
    head = re.split(rb"\r?\n\r?\n", start, maxsplit=1)[0]
    first, *lines = head.decode("utf-8", "surrogateescape").split("\n")
    damaged = f"{path} cannot be read: its header is truncated or damaged"
    if not re.fullmatch(r"NRRD000[1-6]\r?", first) or len(head) == _MOST_HEADER or len(lines) > _MOST_LINES:
        raise UserError(damaged)
    fields: dict[str, str] = {}
    for line in lines:
        line = line.removesuffix("\r")
        if re.search(r"[\x00-\x08\x0b-\x1f]", line):
            raise UserError(f"{damaged}: {line[:80]!r}")
        if line.startswith("#") or re.match(r"[^:=]{1,100}:=", line):
            continue
        name, colon, value = line.partition(": ")
        name = name.lower()
        if name.replace(" ", "") == "datafile":
            raise UserError(f"{path}: its voxels lie in another file; save it with its voxels attached")
        known = colon and name not in fields and name in (*_FIELDS, *_TEXT, *_SEVERAL)
        if not known or len(line) > _MOST_LINE:
            raise UserError(f"{damaged}: {line[:80]!r}")
        fields[name] = value.strip()
    axes = fields.get("dimension", "")
    for name in ("dimension", "sizes", "encoding", *(fields.keys() & _FIELDS.keys())):
        kind, each = _FIELDS[name]
        wanted = int(axes) if each and re.fullmatch("[1-5]", axes) else 1
        if not re.fullmatch(rf"(?:{kind})(?:\s+(?:{kind})){{{wanted - 1}}}", fields.get(name, "")):
            raise UserError(f"{damaged}: {name}: {fields.get(name, '')[:80]}")
    return fields
