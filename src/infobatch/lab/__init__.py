"""The lab: recipes, comparison, report, command line. Needs the extra ``lab``."""

from __future__ import annotations

import sys


def main() -> None:
    """Start the command line, or say what it needs."""
    try:
        from infobatch.lab.cli import app  # noqa: PLC0415 - so that a missing extra can be named
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("infobatch"):
            raise
        sys.exit(
            f"The command infobatch needs the package {error.name}: pip install '.[lab]' in a clone of infobatch"
        )
    app()
