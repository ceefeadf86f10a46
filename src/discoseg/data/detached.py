"""Headers that leave their voxels to another file (MetaImage, NRRD): only one in the header's own folder is read."""

import mmap
import re
from pathlib import Path

from discoseg.errors import UserError

_ENTRY = b"ElementDataFile"
_DATA_FILE = re.compile(rb"\n[ \t]*[Dd][Aa][Tt][Aa][ _]?[Ff][Ii][Ll][Ee][ \t]*:")
_MOST_HEADER = 2**20  # bytes


def require_own_data(path: Path) -> None:
    """Refuse a file whose voxels lie in several others, or in another folder."""
    if path.suffix.lower() in (".mhd", ".mha"):
        data_file(path)
    elif path.suffix.lower() == ".nrrd" and path.stat().st_size:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if _DATA_FILE.search(content):
                raise UserError(f"{path}: its voxels lie in another file; save it with its voxels attached")


def data_file(path: Path) -> Path | None:
    """Return the file beside a MetaImage header that it leaves its voxels to; None when they follow the header."""
    name = read_meta_header(path)[0]["ElementDataFile"]
    if name.upper() == "LOCAL":
        return None
    if name.split()[:1] == ["LIST"] or "%" in name:
        raise UserError(f"{path}: its slices lie in several files; save it as one file, .mha or .nii.gz")
    if not name or re.search(r"[/\\:]", name) or name in (".", ".."):
        raise UserError(f"{path}: its data file {name} must lie beside it, without a folder in its name; move it there")
    return path.parent / name


def read_meta_header(path: Path) -> tuple[dict[str, str], int]:
    """Return the entries of a MetaImage header by name, and its length in bytes.

    The entry that names the data file is the last, and must be the only one, so that every reader of it, SimpleITK's
    too, finds the same.
    """
    damaged = f"{path} cannot be read: it or its data are truncated or damaged"
    if not path.stat().st_size:
        raise UserError(damaged)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        place = content.find(_ENTRY)
        end = content.find(b"\n", place)
        length = len(content) if end < 0 else end + 1
        if not 0 <= place < length <= _MOST_HEADER or content.find(_ENTRY, place + 1) >= 0:
            raise UserError(damaged)
        lines = content[:length].decode("utf-8", "surrogateescape").splitlines()
    pairs = (re.split(r"\s*[=:]\s*", line.strip(), maxsplit=1) for line in lines)
    entries = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    if _ENTRY.decode() not in entries:
        raise UserError(damaged)
    return entries, length
