"""The shuffle: nothing lost, and its orders look like chance."""

import numpy as np
import pytest
from scipy import stats

from infobatch.plan import whole_plan
from infobatch.plan.draw import _in_order
from infobatch.plan.plan import Packing
from infobatch.plan.shuffle import Bijection, rows_in_random_order

SIZE = 1 << 17  # the smallest that is not a permutation of numpy's


def in_random_order(labels, num_classes):
    packing = Packing.of(len(labels), num_classes)
    return _in_order(labels, packing, np.random.SeedSequence(0)), packing.row_bits


def order_of(size, seed=0):
    numbers = np.concatenate(
        [block.copy() for block in rows_in_random_order(size, np.random.SeedSequence(seed))]
    )
    assert len(numbers) < 2 * size + 2
    return numbers[numbers < size].astype(np.int64)


@pytest.mark.parametrize("size", [1, 2, 7, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, SIZE, 200_003])
def test_every_row_comes_once(size):
    assert np.array_equal(np.sort(order_of(size)), np.arange(size))


def test_no_row_of_no_rows():
    assert len(order_of(0)) == 0


@pytest.mark.parametrize("size", [1000, SIZE])
def test_seeds_give_different_orders_and_one_seed_the_same(size):
    assert np.array_equal(order_of(size, 1), order_of(size, 1))
    assert (order_of(size, 1) == order_of(size, 2)).mean() < 0.01


@pytest.mark.parametrize("bits", [17, 21, 32, 33, 40, 64])
def test_one_bit_of_a_number_changes_half_of_the_bits_of_its_image(bits):
    """Each bit of a number turns each bit of its image half of the time."""
    bijection = Bijection(bits, np.random.SeedSequence(0))
    word = bijection.word
    numbers = np.random.default_rng(0).integers(1 << 17, size=20_000).astype(word)
    image, scratch = numbers.copy(), np.empty_like(numbers)
    bijection.apply(image, scratch)
    assert bits == 64 or int(image.max()) < 1 << bits
    assert len(np.unique(image)) == len(np.unique(numbers))
    for bit in range(17):
        flipped = numbers ^ word(1 << bit)
        bijection.apply(flipped, scratch)
        shares = [(((image ^ flipped) >> word(place)) & word(1)).mean() for place in range(bits)]
        assert np.abs(np.array(shares) - 0.5).max() < 0.02  # 5.6 σ


def look_like_chance(order):
    """p-values of: where two samples with neighbouring indices go, and which are visited in turn."""
    size = len(order)
    position = np.empty(size, np.int64)
    position[order] = np.arange(size)
    apart = [(position[lag:] - position[:-lag]) % size for lag in (1, 2, 64, 1023, 1 << 12)]
    in_turn = [(order[lag:] - order[:-lag]) % size for lag in (1, 2, 64)]
    for differences in (*apart, *in_turn):
        yield stats.chisquare(np.bincount(differences * 64 // size, minlength=64)).pvalue
    # How the data set's 32 parts, and classes that alternate, are spread over the epoch's 32 parts.
    for part in (np.arange(size) * 32 // size, np.arange(size) % 10):
        table = np.zeros((part.max() + 1, 32))
        np.add.at(table, (part, position * 32 // size), 1)
        yield stats.chi2_contingency(table).pvalue


@pytest.mark.parametrize("size", [10_000, SIZE, 200_003])
def test_orders_look_like_chance(size):
    results = np.array([list(look_like_chance(order_of(size, seed))) for seed in range(40)])
    assert results.min() > 1e-5  # of 400
    assert stats.kstest(results.ravel(), "uniform").pvalue > 0.001


def test_the_statistics_can_tell_an_order_that_is_not_by_chance():
    """What the test above would say of three rounds, and of shuffled blocks."""
    three_rounds = Bijection(17, np.random.SeedSequence(0))
    del three_rounds._rounds[3:]
    order = np.arange(SIZE, dtype=np.uint32)
    three_rounds.apply(order, np.empty_like(order))
    assert min(look_like_chance(order.astype(np.int64))) < 1e-5
    blocks = np.random.default_rng(0).permutation(SIZE // 64)
    in_blocks = (blocks[:, None] * 64 + np.arange(64)).ravel()
    assert min(look_like_chance(in_blocks)) < 1e-5


@pytest.mark.parametrize("size", [10_000, SIZE])
def test_orders_of_two_epochs_have_nothing_in_common(size):
    first, second = (whole_plan(size, seed=3, epoch=epoch).order.numpy() for epoch in (4, 5))
    position = np.empty((2, size), np.int64)
    position[0, first] = position[1, second] = np.arange(size)
    table = np.zeros((32, 32))
    np.add.at(table, tuple(position * 32 // size), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-4


@pytest.mark.parametrize("size", [1000, SIZE])
def test_leaving_rows_out_does_not_change_the_order_of_the_others(size):
    labels = np.random.default_rng(0).choice(np.array([0, 1, 255], np.uint8), size)
    pruned, row_bits = in_random_order(labels, 2)
    whole, _ = in_random_order(np.zeros(size, np.uint8), 2)
    rows = pruned & ((1 << row_bits) - 1)
    assert np.array_equal(rows, whole[labels[whole] != 255])
    assert np.array_equal(pruned >> row_bits, labels[rows])


def test_codes_of_64_bits_are_shuffled_as_those_of_32():
    labels = np.array([0, 1, 255, 3, 2, 255, 0], np.uint8)
    wide, row_bits = in_random_order(labels, 1 << 31)
    assert wide.dtype == np.uint64
    narrow, _ = in_random_order(labels, 4)
    assert narrow.dtype == np.uint32
    assert np.array_equal(wide, narrow)
    pairs = {(int(code) & (1 << row_bits) - 1, int(code) >> row_bits) for code in wide}
    assert pairs == {(0, 0), (1, 1), (3, 3), (4, 2), (6, 0)}
