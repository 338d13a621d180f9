"""Where batches begin and end: every position once, none empty, the same after a resume."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from infobatch.plan.batching import EvenBatches, FixedBatches, ShrunkBatches

SIZES = st.integers(1, 12)
LENGTHS = st.integers(0, 150)


@st.composite
def shrunk_epochs(draw):
    """The arguments of an epoch whose batches shrink: size, drop_last, positions, full positions."""
    size, full = draw(SIZES), draw(st.integers(1, 150))
    total = draw(st.integers(-(-full // size), full))
    return size, draw(st.booleans()), total, full


def edges_of(batches):
    """The edges, after a check that everything the batches say of themselves agrees."""
    bounds = [batches.bounds(batch) for batch in range(len(batches))]
    edges = [0, *[stop for _, stop in bounds]]
    assert [start for start, _ in bounds] == edges[:-1], "no gap and no overlap"
    assert all(start < stop for start, stop in bounds), "none is empty"
    assert batches.deliverable == edges[-1]
    for batch, (start, stop) in enumerate(bounds):
        assert stop - start <= batches.largest
        for position in range(start, stop):
            assert batches.number(position) == batch
            assert batches.end(position) == stop
            for more in range(1, 4):
                assert batches.end(position, more) == edges[min(batch + more, len(bounds))]
    return edges


@given(size=SIZES, length=LENGTHS)
def test_fixed_batches(size, length):
    whole = FixedBatches(size, False, length)
    assert edges_of(whole) == [*range(0, length, size), length] if length else [0]
    assert whole.deliverable == length


@given(size=SIZES, length=LENGTHS)
def test_fixed_batches_without_an_incomplete_last_one(size, length):
    batches = FixedBatches(size, True, length)
    bounds = [batches.bounds(batch) for batch in range(len(batches))]
    assert bounds == [(start, start + size) for start in range(0, length - size + 1, size)]
    assert batches.deliverable == length - length % size
    for position in range(batches.deliverable):
        assert batches.bounds(batches.number(position))[0] <= position < batches.end(position)


@given(size=SIZES, length=LENGTHS, data=st.data())
def test_even_batches(size, length, data):
    straight = edges_of(EvenBatches(size, length))
    sizes = np.diff(straight)
    assert len(sizes) == -(-length // size)
    assert sizes.sum() == length
    if length:
        assert sizes.max() - sizes.min() <= 1
        assert sizes.max() <= size
    offset = data.draw(st.integers(0, length))
    rest = edges_of(EvenBatches(size, length - offset, offset=offset))
    assert [offset + edge for edge in rest[1:]] == [edge for edge in straight if edge > offset]


@given(shrunk_epochs(), st.data())
def test_shrunk_batches_that_are_even(epoch, data):
    size, _, total, full = epoch
    straight = edges_of(ShrunkBatches(size, False, total, full=full, even=True))
    sizes = np.diff(straight)
    assert len(sizes) == -(-full // size)
    assert sizes.max() - sizes.min() <= 1
    offset = data.draw(st.integers(0, total))
    rest = ShrunkBatches(size, False, total - offset, full=full, offset=offset, even=True)
    assert [offset + edge for edge in edges_of(rest)[1:]] == [e for e in straight if e > offset]


@given(shrunk_epochs())
def test_shrunk_batches(epoch):
    size, drop_last, total, full = epoch
    batches = ShrunkBatches(size, drop_last, total, full=full)
    assert len(batches) == len(FixedBatches(size, drop_last, full)), "as many as a full epoch has"
    edges = edges_of(batches)
    full_edges = [min(batch * size, full) for batch in range(len(batches) + 1)]
    for edge, full_edge in zip(edges, full_edges, strict=True):
        assert abs(edge - full_edge * total / full) <= 1, "in proportion"
    for (start, stop), (full_start, full_stop) in zip(
        itertools.pairwise(edges), itertools.pairwise(full_edges), strict=True
    ):
        assert abs((stop - start) - (full_stop - full_start) * total / full) <= 1
    if not drop_last:
        assert batches.deliverable == total


@given(size=SIZES, drop_last=st.booleans(), full=st.integers(1, 150))
def test_of_a_whole_epoch_nothing_shrinks(size, drop_last, full):
    shrunk = ShrunkBatches(size, drop_last, full, full=full)
    even = FixedBatches(size, drop_last, full)
    bounds = [[b.bounds(batch) for batch in range(len(b))] for b in (shrunk, even)]
    assert bounds[0] == bounds[1]


@given(shrunk_epochs(), st.data())
def test_a_resumed_epoch_has_the_same_edges(epoch, data):
    """Stopped anywhere: at an edge all later batches are the same, within a batch it has a rest."""
    size, drop_last, total, full = epoch
    straight = edges_of(ShrunkBatches(size, drop_last, total, full=full))
    offset = data.draw(st.integers(0, total))
    rest = ShrunkBatches(size, drop_last, total - offset, full=full, offset=offset)
    edges = [edge + offset for edge in edges_of(rest)]
    assert edges == [max(offset, 0), *[edge for edge in straight if edge > offset]]


def test_nothing_is_left_but_what_is_dropped():
    """57 of 60 positions are in batches, and a checkpoint has visited them (or more)."""
    for offset in (57, 58, 60):
        batches = ShrunkBatches(8, True, 60 - offset, full=100, offset=offset)
        assert len(batches) == 0
        assert batches.deliverable == 0


@given(shrunk_epochs(), st.integers(1, 3), st.booleans(), st.data())
def test_factors_divide_by_the_full_batch_s_samples(epoch, ranks, even, data):
    """For each batch, over all ranks: factor / samples of the batch = 1 / samples of the full one.

    Where ranks have fewer positions than the longest, they repeat some, which do not count.
    """
    size, drop_last, total, full = epoch
    if even:  # as ranks divide a plan
        less = [0] + [min(1, total - 1)] * (ranks - 1)
        full_less = [0] + [min(1, full - 1)] * (ranks - 1)
    else:  # as shards have been drawn, each for itself
        less = [0] + [data.draw(st.integers(0, total - 1)) for _ in range(ranks - 1)]
        full_less = [0] * ranks
    counts, full_counts = total - np.array(less), full - np.array(full_less)
    assume((counts <= full_counts).all())
    batches = ShrunkBatches(size, drop_last, total, full=full)
    batches.compare(counts, full_counts)
    for batch in range(len(batches)):
        start, stop = batches.bounds(batch)
        real = sum(position < count for position in range(start, stop) for count in counts)
        full_start, full_stop = batch * size, min((batch + 1) * size, full)
        in_full = sum(
            position < count for position in range(full_start, full_stop) for count in full_counts
        )
        factors = batches.factors(np.arange(start, stop))
        assert factors == pytest.approx([real / in_full] * (stop - start), rel=1e-12)
    if drop_last:  # positions that are dropped have a harmless one
        assert (batches.factors(np.arange(batches.deliverable, total)) == 1).all()


@given(shrunk_epochs(), st.data())
def test_factors_after_a_resume(epoch, data):
    """Every batch stands for the same full one, also one of which only a rest is left."""
    size, drop_last, total, full = epoch
    straight = ShrunkBatches(size, drop_last, total, full=full)
    straight.compare(np.array([total]), np.array([full]))
    offset = data.draw(st.integers(0, straight.deliverable))
    rest = ShrunkBatches(size, drop_last, total - offset, full=full, offset=offset)
    rest.compare(np.array([total - offset]), np.array([full]))
    positions = np.arange(offset, straight.deliverable)
    assert rest.factors(positions - offset) == pytest.approx(straight.factors(positions), rel=1e-12)


@given(shrunk_epochs(), st.data())
def test_the_full_epoch_s_position(epoch, data):
    """A batch stands for the full one of its number, a part of it for the same part, rounded down."""
    size, drop_last, total, full = epoch
    straight = ShrunkBatches(size, drop_last, total, full=full)
    offset = data.draw(st.integers(0, straight.deliverable))
    rest = ShrunkBatches(size, drop_last, total - offset, full=full, offset=offset)
    for position in range(offset, straight.deliverable):
        batch = straight.number(position)
        start, stop = straight.bounds(batch)
        full_size = min((batch + 1) * size, full) - batch * size
        expected = batch * size + (position - start) * full_size // (stop - start)
        assert rest.full_position(position - offset) == expected
    end = min(len(straight) * size, full)
    assert rest.full_position(rest.deliverable) == rest.full_position(total) == end


def test_by_hand():
    """100 samples in batches of 8, 60 of them kept: 13 batches of 4 or 5, the last of 3."""
    batches = ShrunkBatches(8, False, 60, full=100)
    assert edges_of(batches) == [0, 4, 9, 14, 19, 24, 28, 33, 38, 43, 48, 52, 57, 60]
    batches.compare(np.array([60]), np.array([100]))
    assert batches.factors(np.array([0, 4, 59])).tolist() == [4 / 8, 5 / 8, 3 / 4]


def test_a_batch_size_that_leaves_batches_empty():
    with pytest.raises(
        ValueError,
        match=r'^batch_sampler\(batch_size=2, shrink="batch"\) cannot divide 49 samples among the 50 '
        r"batches of an epoch over all data: some would be empty\. Use a larger batch_size, prune "
        r'less, or use shrink="epoch"\.$',
    ):
        ShrunkBatches(2, False, 49, full=100)
    assert len(ShrunkBatches(2, False, 50, full=100)) == 50


@given(size=SIZES, drop_last=st.booleans(), full=st.integers(1, 150), data=st.data())
def test_it_raises_exactly_where_batches_would_be_empty(size, drop_last, full, data):
    total = data.draw(st.integers(1, full))
    if total * size < full:
        with pytest.raises(ValueError, match="some would be empty"):
            ShrunkBatches(size, drop_last, total, full=full)
    else:
        edges_of(ShrunkBatches(size, drop_last, total, full=full))
