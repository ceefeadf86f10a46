"""Whole experiments: the demo, and the paper's tables and figures."""
