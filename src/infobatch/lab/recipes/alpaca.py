"""Instruction tuning on Stanford Alpaca.

The 9,229 rows of ``random_9k`` for 4 epochs, rows cut to 192 tokens: minutes on two cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infobatch.lab.datasets.readers import Alpaca
from infobatch.lab.options import one_of
from infobatch.lab.recipes.instruction_tuning import Exchange, InstructionTuning

EPOCHS = {"random_9k": 4, "dq_k5_1k": 5}  # with more epochs, the small selection is memorised
HELD_OUT_FROM = ("random_5k", "random_1k")


@dataclass
class Recipe(InstructionTuning):
    """Instructions of all kinds; options ``rows``, ``count`` and ``epochs``.

    Options:
        rows: ``random_9k``, an unbiased sample of Alpaca, or ``dq_k5_1k``, the 1,000 rows that Dataset
            Quantization selects: the paper's Table 9, pruning on top of a static selection.
    """

    rows: str = "random_9k"

    def __post_init__(self) -> None:
        one_of("rows", self.rows, tuple(EPOCHS))
        self.source = Alpaca(self.folder)
        super().__post_init__()

    @property
    def usual_epochs(self) -> int:
        """As many as are useful."""
        return EPOCHS[self.rows]

    def exchanges(self) -> tuple[list[Exchange], list[Exchange]]:
        """The chosen rows, and a random sample that no choice of rows contains."""
        rows = self.source.rows()
        chosen = [row for row in rows if self.rows in row["src"]]
        unseen = [
            row
            for row in rows
            if not set(row["src"]) & set(EPOCHS) and set(row["src"]) & set(HELD_OUT_FROM)
        ]
        return [exchange(row) for row in chosen], [exchange(row) for row in unseen]


def exchange(row: dict[str, Any]) -> Exchange:
    """A row of Alpaca; many have no input."""
    return Exchange(" ".join([row["instruction"], row["input"]]).strip(), row["output"])
