"""The HTML page about one or several runs."""

from discoseg.report.page import write_report
from discoseg.report.runs import name_runs

__all__ = ["name_runs", "write_report"]
