"""The page of a coreset: the highest and lowest ranked samples, and the class balance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from infobatch.coresets import METHODS, Coreset
from infobatch.files import write_atomically
from infobatch.lab.report.page import LONGEST_TEXT, Sample, template
from infobatch.lab.report.pictures import data_uri
from infobatch.lab.report.sample_figures import class_name

SHOWN = 12


@dataclass(frozen=True)
class SelectionPage:
    """The content of a coreset's page.

    ``source`` describes what it was chosen from; ``labels`` and ``show`` are for the classes and
    the samples, if there are any.
    """

    chosen: Coreset
    source: str
    command: str
    labels: Sequence[int] | None = None
    class_names: Sequence[str] = ()
    show: Callable[[int], Any] | None = None

    def write(self, path: Path) -> None:
        """Write the page atomically."""
        text = self.render()
        write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))

    def render(self) -> str:
        """The page's HTML."""
        chosen = self.chosen
        least, title = self._least()
        return template("selection.html.jinja").render(
            method=chosen.method,
            summary=METHODS.entries[chosen.method].summary,
            source=self.source,
            command=self.command,
            chosen=len(chosen),
            total=chosen.num_samples,
            cost=cost_in_words(chosen),
            most=[self._sample(int(index)) for index in chosen.indices[:SHOWN]],
            least=[self._sample(int(index)) for index in least],
            least_title=title,
            classes=self._classes(),
        )

    def _least(self) -> tuple[np.ndarray[Any, Any], str]:
        """The samples with the lowest scores; a method that chooses a set ranks only that set."""
        left_out = np.setdiff1d(np.arange(self.chosen.num_samples), self.chosen.indices)
        scores = self.chosen.scores
        if scores is not None:
            return left_out[np.argsort(scores[left_out], kind="stable")][
                :SHOWN
            ], "The least important"
        drawn = np.random.default_rng(0).permutation(left_out)[:SHOWN]
        return np.sort(drawn), "A random draw of those that were left out"

    def _sample(self, index: int) -> Sample:
        shown = None if self.show is None else self.show(index)
        text = shown if isinstance(shown, str) else None
        if text is not None and len(text) > LONGEST_TEXT:
            text = text[:LONGEST_TEXT] + " …"
        scores = self.chosen.scores
        return Sample(
            index=index,
            score=None if scores is None else float(scores[index]),
            label=None if self.labels is None else class_name(self.labels[index], self.class_names),
            visits=None,
            picture=None if shown is None or text is not None else data_uri(shown),
            text=text,
        )

    def _classes(self) -> list[dict[str, Any]]:
        if self.labels is None:
            return []
        labels = np.asarray(self.labels)
        rows = []
        for label in np.unique(labels):
            samples = int((labels == label).sum())
            kept = int((labels[self.chosen.indices] == label).sum())
            name = class_name(label, self.class_names)
            rows.append({"name": name, "samples": samples, "chosen": kept, "share": kept / samples})
        return rows


def cost_in_words(chosen: Coreset) -> str:
    """The cost of the selection, in a sentence."""
    cost = chosen.cost
    if not cost.samples_forwarded:
        return f"It took {cost.seconds:.1f} seconds."
    return (
        f"It took {cost.seconds:.1f} seconds and {cost.samples_forwarded:,} sample passes of a proxy, "
        f"{cost.samples_backpropagated:,} of them with gradients."
    )
