"""Figures and the HTML page about one or several runs."""

from discoseg.report.page import write_report

__all__ = ["write_report"]
