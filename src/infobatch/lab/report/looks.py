"""The style of an arm, the same in every figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infobatch.lab.report.svg import COLOURS, DASHES, MARKERS


@dataclass(frozen=True)
class Look:
    """An arm's colour, marker and dash: any two of them distinguish arms without the third."""

    colour: str
    marker: str
    dash: Any

    def line(self) -> dict[str, Any]:
        """Arguments of a plotted line."""
        return {"color": self.colour, "marker": self.marker, "ls": self.dash, "ms": 4}


def looks_of(arms: Sequence[str]) -> dict[str, Look]:
    """Colours, markers and dashes by arm."""
    return {
        arm: Look(COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)])
        for i, arm in enumerate(arms)
    }


def folded(arm: str) -> str:
    """An arm's name for an axis, split into as many lines as its options need."""
    return arm.replace(":", ":\n")


def shortened(text: str, length: int = 28) -> str:
    """A user's text on one line, short enough for an axis."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
