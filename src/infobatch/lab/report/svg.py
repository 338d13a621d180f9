"""Matplotlib figures as SVG with the page's colours and fonts, in light and dark mode.

Figures are drawn in placeholder colours, which are then replaced by CSS variables, so that a figure
follows the page's colour scheme. Without pyplot, no global state is touched.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, GRID, ALARM = "#010101", "#020202", "#030303", "#040404"
# One for each arm; the first is for `full`. Marker and dash distinguish arms, too.
COLOURS = tuple(f"#0505{number:02x}" for number in range(8))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1)), (0, (6, 2)), (0, (1, 1)), (0, (4, 1)))
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", ALARM: "--worse"} | {
    colour: f"--arm-{number}" for number, colour in enumerate(COLOURS)
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "infobatch",  # the same figure gives the same SVG
    "text.parse_math": False,  # a $ in a user's text is literal
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
# The width of a phone, in points: the text of a wider figure would be too small to read there.
WIDTH = 340
_LEGEND_LINES = 6  # for which a figure's height has room
_LEGEND_LINE = 15  # points


def draw(
    name: str, label: str, plot: Callable[[list[Axes]], None], *, height: int = 250, rows: int = 1
) -> Markup:
    """Let ``plot`` fill the axes, one below the other, and return an inline SVG.

    ``name`` makes ids unique among several figures in a page; ``label`` is for screen readers.
    ``height`` includes a legend of a few lines; the figure grows with a longer one.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure((WIDTH / 72, height / 72), layout="constrained")
        axes = figure.subplots(rows, 1, sharex=rows > 1, squeeze=False)[:, 0]
        plot(list(axes))
        handles, labels = axes[0].get_legend_handles_labels()
        if handles:
            # As many columns as fit: two arms may differ only in their last option.
            columns = int(WIDTH / (28 + 5.5 * max(map(len, labels))))
            columns = min(max(columns, 1), 3)
            more_lines = max(0, math.ceil(len(labels) / columns) - _LEGEND_LINES)
            figure.set_figheight((height + more_lines * _LEGEND_LINE) / 72)
            figure.legend(
                handles, labels, loc="outside upper left", ncols=columns, columnspacing=1.2
            )
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    return _inlined(file.getvalue(), name, label)


def hover(artist: Artist, text: str) -> None:
    """Let the browser show a text when the pointer rests on a mark, without a script."""
    artist.set_gid(_HOVER + text)


def _inlined(text: str, name: str, label: str) -> Markup:
    text = text[text.index("<svg") :]
    # An id is escaped like an element's text, so it can be turned into one.
    text = re.sub(rf'<g id="{_HOVER}([^"]*)">', r"<g><title>\1</title>", text)
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    text = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{name}-", text)
    text = text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(label)}" ', 1)
    # The page sets the size; the viewBox keeps the figure's aspect ratio.
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    return Markup(text)
