"""Figures make room for what is drawn in them."""

import re

import pytest

from infobatch.lab.report.svg import WIDTH, draw


def height(svg):
    _, _, width, height = map(float, re.search(r'viewBox="([^"]*)"', svg)[1].split())
    assert width == WIDTH
    return height


def figure(arms):
    def plot(axes):
        for number in range(arms):
            axes[0].plot([0, 1], [number, number], label=f"coreset:method_{number}@0.3")

    return draw("figure", "lines", plot, height=290)


@pytest.mark.parametrize("arms", [0, 2, 8])
def test_a_short_legend_fits_into_the_figure(arms):
    assert height(figure(arms)) == 290


def test_a_figure_grows_with_a_long_legend():
    """Otherwise Matplotlib warns that nothing is left for the axes, which is an error here."""
    assert 290 < height(figure(40)) < height(figure(85))
