"""The style of an arm, the same in every figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from infobatch.lab.report.svg import COLOURS, DASHES, MARKERS

# What well-known rules look like in every comparison; the others have what is left.
_OWN = {
    "full": 0,
    "random": 1,
    "infobatch": 2,
    "mean": 2,
    "quantile": 3,
    "auto": 4,
    "epsilon_greedy": 5,
    "ucb": 6,
}


@dataclass(frozen=True)
class Look:
    """An arm's colour, marker and dash: any two of them distinguish arms without the third."""

    number: int

    @property
    def colour(self) -> str:
        """The colour in the report."""
        return COLOURS[self.number % len(COLOURS)]

    @property
    def marker(self) -> str:
        """The marker of a point."""
        return MARKERS[self.number % len(MARKERS)]

    @property
    def dash(self) -> Any:
        """The dashes of a line."""
        return DASHES[self.number % len(DASHES)]

    def line(self) -> dict[str, Any]:
        """Arguments of a plotted line."""
        return {"color": self.colour, "marker": self.marker, "ls": self.dash, "ms": 4}


def looks_of(arms: Sequence[str]) -> dict[str, Look]:
    """Looks by arm: a rule's own, if no arm before it in the list has it, else one that is left.

    >>> looks_of(["full", "auto", "auto:shrink=batch"])["auto"].number
    4
    """
    numbers: dict[str, int] = {}
    for arm in sorted(arms, key=lambda arm: ":" in arm):  # rules without options come first
        number = _OWN.get(arm.partition(":")[0])
        if number is not None and number not in numbers.values():
            numbers[arm] = number
    taken, nobodys = set(numbers.values()), max(_OWN.values()) + 1
    free = (
        number
        for number in chain([nobodys], range(nobodys), count(nobodys + 1))
        if number not in taken
    )
    left = {arm: next(free) for arm in arms if arm not in numbers}
    return {arm: Look((numbers | left)[arm]) for arm in arms}


def folded(arm: str) -> str:
    """An arm's name for an axis, split into as many lines as its options need."""
    return arm.replace(":", ":\n")


def shortened(text: str, length: int = 28) -> str:
    """A user's text on one line, short enough for an axis."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
