"""What a command shows: a live display on a terminal, sparse lines in a log, a summary, or one JSON document."""

from discoseg.terminal.display import Display
from discoseg.terminal.output import Terminal

__all__ = ["Display", "Terminal"]
