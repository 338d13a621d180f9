"""Measurements for the tests of the statistics."""

from infobatch.lab.stats.pairing import Measurement, PairedRuns


def runs_of(arm, qualities, *, cost=100.0):
    """Runs by length, with one quality per seed and a cost in proportion to the length."""
    return [
        Measurement(arm, length, seed, cost * length, quality)
        for length, values in qualities.items()
        for seed, quality in enumerate(values)
    ]


def paired(*groups, higher_is_better=True):
    """All runs of several groups, paired by seed."""
    runs = [run for group in groups for run in group]
    return PairedRuns(runs, higher_is_better=higher_is_better)
