"""``python -m discoseg`` is the command ``discoseg``."""

from discoseg.cli import main

if __name__ == "__main__":
    main()
