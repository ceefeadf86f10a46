"""``python -m discoseg`` is the command ``discoseg``."""

from discoseg.cli import main

main()
