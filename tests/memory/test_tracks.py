"""What is remembered about each sample, against slow plain loops over its visits."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infobatch.memory.memory import Memory
from infobatch.tracks import Ema, LastVisit, Visits, Welford, Window

SAMPLES = 5
SCORES = st.floats(-100, 100, width=32)
# Per epoch, the samples that are visited and their scores.
VISITS = st.lists(st.dictionaries(st.integers(0, SAMPLES - 1), SCORES), max_size=12)


def unseen():
    return np.full(SAMPLES, np.nan, np.float32)


def folded(track, epochs, known=None):
    """A memory after some epochs, the samples of each in a scattered order and in two blocks."""
    memory = Memory(unseen() if known is None else known, (track,))
    for epoch, visits in enumerate(epochs):
        rows = np.array(sorted(visits, key=lambda row: (row * 3) % SAMPLES), np.intp)
        scores = np.array([visits[row] for row in rows.tolist()], np.float32)
        memory.fold([(rows[:2], scores[:2]), (rows[2:], scores[2:])], epoch)
    return memory


def history_of(epochs, row):
    """The (epoch, score) pairs of a sample."""
    return [(epoch, visits[row]) for epoch, visits in enumerate(epochs) if row in visits]


@given(VISITS)
def test_the_last_score_is_always_there(epochs):
    memory = folded(Visits(), epochs)
    for row in range(SAMPLES):
        scores = [score for _, score in history_of(epochs, row)]
        expected = scores[-1] if scores else math.nan
        assert memory.scores[row] == pytest.approx(expected, nan_ok=True)
    assert memory.scores.dtype == np.float32


@given(VISITS, st.sampled_from([0.1, 0.5, 0.7, 0.9]))
def test_ema(epochs, smoothing):
    memory = folded(Ema(smoothing), epochs)
    for row in range(SAMPLES):
        average = math.nan
        for _, score in history_of(epochs, row):
            old = score if math.isnan(average) else average
            average = smoothing * old + (1 - smoothing) * score
        assert memory.columns["ema"][row] == pytest.approx(average, rel=1e-4, abs=1e-3, nan_ok=True)
    assert memory.columns["ema"].dtype == np.float32


def test_ema_begins_with_the_scores_of_an_earlier_run():
    known = np.array([2.0, math.nan, 3.0, math.nan, math.nan], np.float32)
    memory = folded(Ema(0.75), [{0: 6.0, 1: 6.0}], known.copy())
    assert memory.columns["ema"][:3].tolist() == [3.0, 6.0, 3.0]
    assert memory.scores[:3].tolist() == [6.0, 6.0, 3.0], "the average is a column of its own"


@given(VISITS)
def test_welford(epochs):
    columns = folded(Welford(), epochs).columns
    for row in range(SAMPLES):
        scores = [score for _, score in history_of(epochs, row)]
        assert columns["count"][row] == len(scores)
        if scores:
            assert columns["mean"][row] == pytest.approx(
                statistics.fmean(scores), rel=1e-4, abs=1e-3
            )
            assert columns["variance"][row] == pytest.approx(
                statistics.pvariance(scores), rel=1e-3, abs=1e-2
            )
        else:
            assert columns["mean"][row] == columns["variance"][row] == 0
    assert columns["mean"].dtype == columns["variance"].dtype == np.float32


def test_welford_where_the_mean_is_large():
    """The sum of squares less the squared sum would lose all digits in float32."""
    scores = [10_000 + delta for delta in (0.0, 1.0, 2.0, 3.0)]
    columns = folded(Welford(), [{0: score} for score in scores]).columns
    assert columns["variance"][0] == pytest.approx(1.25, rel=1e-3)


@given(VISITS)
def test_visits_and_last_visit(epochs):
    visits = folded(Visits(), epochs).columns["visits"]
    last = folded(LastVisit(), epochs).columns["last_visit"]
    for row in range(SAMPLES):
        history = history_of(epochs, row)
        assert visits[row] == len(history)
        assert last[row] == (history[-1][0] if history else -1)


@pytest.mark.parametrize(("track", "column"), [(Visits(), "visits"), (Welford(), "count")])
def test_counts_stay_at_the_type_s_largest_number(track, column):
    memory = Memory(unseen(), (track,))
    memory.columns[column][:] = 65_533
    for epoch in range(4):
        memory.fold([(slice(0, 3), np.ones(3, np.float32))], epoch)
    assert memory.columns[column].dtype == np.uint16
    assert memory.columns[column].tolist() == [65_535] * 3 + [65_533] * 2


@given(VISITS, st.integers(1, 4))
def test_window(epochs, length):
    window = folded(Window(length), epochs).columns["window"]
    assert window.shape == (SAMPLES, length)
    assert window.dtype == np.float32
    for row in range(SAMPLES):
        scores = [score for _, score in history_of(epochs, row)][-length:]
        expected = [math.nan] * (length - len(scores)) + scores
        assert window[row].tolist() == pytest.approx(expected, nan_ok=True)


@given(VISITS)
def test_rows_that_were_not_visited_keep_every_bit(epochs):
    """Only the rows of visited samples change, in all columns."""
    memory = Memory(unseen(), (Ema(0.5), Welford(), Visits(), LastVisit(), Window(2)))
    for epoch, visits in enumerate(epochs):
        before = memory.copy()
        rows = np.array(sorted(visits), np.intp)
        scores = np.array([visits[row] for row in rows.tolist()], np.float32)
        memory.fold([(rows, scores)], epoch)
        others = np.setdiff1d(np.arange(SAMPLES), rows)
        for name, column in memory.columns.items():
            assert column[others].tobytes() == before.columns[name][others].tobytes(), name
