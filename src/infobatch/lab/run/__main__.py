"""``python -m infobatch.lab.run``: see :mod:`infobatch.lab.run.process`."""

from __future__ import annotations

import typer

from infobatch.lab.run.process import main

if __name__ == "__main__":
    typer.run(main)
