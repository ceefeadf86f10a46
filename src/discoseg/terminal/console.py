"""rich's console for names of any kind: what would move the cursor, or cannot be printed, is written out."""

from typing import Any

from rich.console import Console as RichConsole
from rich.text import Text

from discoseg.errors import printable


class Console(RichConsole):
    """Prints the texts of lines, tables and titles; a name in them cannot colour, clear or retitle the terminal."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text with its markup; lines may be several."""
        return super().render_str("\n".join(map(printable, text.split("\n"))), **options)
