"""Measurements for the tests of the statistics."""

from infobatch.lab.stats.measurements import Measurement


def runs_of(arm, qualities, *, cost=100.0):
    """Runs by length, with one quality per seed and a cost in proportion to the length."""
    return [
        Measurement(arm, length, seed, cost * length, quality)
        for length, values in qualities.items()
        for seed, quality in enumerate(values)
    ]
