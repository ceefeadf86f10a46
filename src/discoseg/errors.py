"""The one exception for what a user did: the command line shows its message in one line and exits with status 2."""

import re

MOST_CHARACTERS = 1000  # of a message, which may quote what a file says
# Control characters (the terminal's escape among them), line separators, marks that turn the direction of writing, and
# what stands for bytes of a file name that are no text.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def printable(text: str) -> str:
    r"""Return a text in which everything that could move a cursor, or cannot be printed, is written out.

    >>> print(printable("a\nb\x1b[31mc"))
    a\nb\x1b[31mc
    """
    return UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


def one_line(text: str) -> str:
    """Return a text as one printable line of bounded length, whose middle gives way.

    >>> len(one_line("x" * 5000))
    1000
    """
    half = MOST_CHARACTERS // 2
    return printable(text if len(text) <= 2 * half else f"{text[: half - 3]} … {text[-half:]}")


class UserError(ValueError):
    """Input that cannot work; the message names the file or option and says what to do about it.

    The message is one printable line without a trailing full stop, whatever the file names and cells that it quotes.
    Anything that cannot happen, whatever the user does, is an ``assert`` instead.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))
