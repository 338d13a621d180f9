"""Matplotlib's figures as SVG that belongs into a page: its colours, its text, light and dark.

Figures are drawn in stand-in colours, which are then replaced by CSS variables, so that one figure
follows the page's colour scheme. No pyplot: nothing global is touched.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, GRID, ALARM = "#010101", "#020202", "#030303", "#040404"
# One for each arm: the arm `full` has the first. Told apart by marker and dash, too.
COLOURS = tuple(f"#0505{number:02x}" for number in range(8))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1)), (0, (6, 2)), (0, (1, 1)), (0, (4, 1)))
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", ALARM: "--worse"} | {
    colour: f"--arm-{number}" for number, colour in enumerate(COLOURS)
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "infobatch",  # the same figure has the same text
    "text.parse_math": False,  # a user's $ is a $
    "font.family": ["DejaVu Sans"],
    "font.size": 10.5,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10.5,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.fontsize": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "lines.linewidth": 1.8,
    "axes.formatter.useoffset": False,
    "axes.unicode_minus": True,
}
_HOVER = "hover:"
# As wide as a phone, in points: a wider figure's text would shrink there below what one can read.
WIDTH = 340


def draw(
    name: str, label: str, plot: Callable[[list[Axes]], None], *, height: int = 250, rows: int = 1
) -> Markup:
    """Let ``plot`` fill the axes, one below the other, and return an inline SVG.

    ``name`` keeps the ids of several figures in one page apart; ``label`` is what a screen reader
    says.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure((WIDTH / 72, height / 72), layout="constrained")
        axes = figure.subplots(rows, 1, sharex=rows > 1, squeeze=False)[:, 0]
        plot(list(axes))
        handles, labels = axes[0].get_legend_handles_labels()
        if handles:
            # As many columns as there is room for: two arms may differ in their last option alone.
            columns = int(WIDTH / (28 + 5.5 * max(map(len, labels))))
            columns = min(max(columns, 1), 3)
            figure.legend(
                handles, labels, loc="outside upper left", ncols=columns, columnspacing=1.2
            )
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    return _inlined(file.getvalue(), name, label)


def hover(artist: Artist, text: str) -> None:
    """Let the browser show a text where the pointer rests on a mark, without a script."""
    artist.set_gid(_HOVER + text)


def _inlined(text: str, name: str, label: str) -> Markup:
    text = text[text.index("<svg") :]
    # An id is escaped as an element's text would be, so it can become one.
    text = re.sub(rf'<g id="{_HOVER}([^"]*)">', r"<g><title>\1</title>", text)
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    text = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{name}-", text)
    text = text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(label)}" ', 1)
    # The page gives the size; the figure keeps its shape by its viewBox.
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    return Markup(text)
