"""Names of cases and structures, which become file names, cells of tables and words on command lines."""

from discoseg.errors import UNPRINTABLE, UserError

MOST_BYTES = 200  # a file's name has 255 at most, and endings follow
_FIRST = ".-=+@"  # hidden files, options, and what a spreadsheet takes for a formula


def require_name(name: str, where: object, what: str = "case", *, slashes: bool = False) -> None:
    """Refuse a name that leads to another folder, or that a shell, a spreadsheet or a terminal would take for more.

    ``where`` is named in the error, ``what`` is the thing that has the name; ``slashes`` says whether it may have some,
    because it does not become the name of a file.
    """
    if UNPRINTABLE.search(name):
        reason = "has a character that cannot be printed"
    elif not slashes and ("/" in name or "\\" in name):
        reason = "has a slash in it"
    elif not name or name[0] in _FIRST:
        reason = f"must begin with none of {' '.join(_FIRST)}" if name else "is empty"
    elif len(name.encode()) > MOST_BYTES:
        reason = f"is longer than {MOST_BYTES} bytes"
    else:
        return
    raise UserError(f"{where}: the name of the {what} {name[:MOST_BYTES]!r} {reason}; rename it")
