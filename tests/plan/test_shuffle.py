"""The shuffle: nothing lost, and its orders look like chance."""

import numpy as np
import pytest
from scipy import stats

from infobatch.plan import whole_plan
from infobatch.plan.draw import _in_order
from infobatch.plan.shuffle import Cipher

SIZE = 1 << 16


def cipher(word, seed=0):
    return Cipher(word, np.random.SeedSequence(seed))


@pytest.mark.parametrize("word", [np.uint32, np.uint64])
@pytest.mark.parametrize("size", [0, 1, 7, 1 << 15, 100_003])
def test_decrypt_undoes_encrypt(word, size):
    words = np.random.default_rng(0).integers(np.iinfo(word).max, size=size, dtype=word)
    changed = words.copy()
    cipher(word).encrypt(changed)
    if size:
        assert (changed != words).mean() > 0.99 or size == 1
    cipher(word).decrypt(changed)
    assert np.array_equal(changed, words)


@pytest.mark.parametrize("word", [np.uint32, np.uint64])
def test_one_bit_of_a_word_changes_half_of_its_cipher(word):
    """Each bit of a word, small ones as indices are, turns each bit of the cipher half of the time."""
    words = np.random.default_rng(0).integers(1 << 21, size=20_000).astype(word)
    bits = 8 * np.dtype(word).itemsize
    shares = np.zeros((21, bits))
    plain = words.copy()
    cipher(word).encrypt(plain)
    for bit in range(21):
        flipped = words ^ word(1 << bit)
        cipher(word).encrypt(flipped)
        for place in range(bits):
            shares[bit, place] = (((plain ^ flipped) >> word(place)) & word(1)).mean()
    assert np.abs(shares - 0.5).max() < 0.02  # 5.6 σ, of 21 × bits figures


def orders(word, seeds):
    for seed in range(seeds):
        words = np.arange(SIZE, dtype=word)
        cipher(word, seed).encrypt(words)
        yield np.argsort(words)


def look_like_chance(order):
    """p-values of: where two samples with neighbouring indices go, and which are visited in turn."""
    position = np.empty(SIZE, np.int64)
    position[order] = np.arange(SIZE)
    apart = [(position[lag:] - position[:-lag]) % SIZE for lag in (1, 2, 64, 1023, 1 << 12)]
    in_turn = (order[1:] - order[:-1]) % SIZE
    for differences in (*apart, in_turn):
        yield stats.chisquare(np.bincount(differences >> 10, minlength=64)).pvalue
    # How the data set's 32 parts are spread over the epoch's 32 parts.
    table = np.zeros((32, 32))
    np.add.at(table, (np.arange(SIZE) >> 11, position >> 11), 1)
    yield stats.chi2.sf(((table - 64) ** 2 / 64).sum(), 31 * 31)


@pytest.mark.parametrize("word", [np.uint32, np.uint64])
def test_orders_look_like_chance(word):
    results = np.array([list(look_like_chance(order)) for order in orders(word, 40)])
    assert results.min() > 1e-5  # of 280
    assert stats.kstest(results.ravel(), "uniform").pvalue > 0.001


def test_the_statistics_can_tell_an_order_that_is_not_by_chance():
    """What the test above would say of two rounds, and of shuffled blocks."""
    two_rounds = cipher(np.uint32)
    two_rounds._rounds.pop()
    words = np.arange(SIZE, dtype=np.uint32)
    two_rounds.encrypt(words)
    assert min(look_like_chance(np.argsort(words))) < 1e-5
    blocks = np.random.default_rng(0).permutation(SIZE // 64)
    in_blocks = (blocks[:, None] * 64 + np.arange(64)).ravel()
    assert min(look_like_chance(in_blocks)) < 1e-5


def test_orders_of_two_epochs_have_nothing_in_common():
    first, second = (whole_plan(SIZE, seed=3, epoch=epoch).order.numpy() for epoch in (4, 5))
    table = np.zeros((32, 32))
    position = np.empty((2, SIZE), np.int64)
    position[0, first] = position[1, second] = np.arange(SIZE)
    np.add.at(table, (position[0] >> 11, position[1] >> 11), 1)
    assert stats.chi2.sf(((table - 64) ** 2 / 64).sum(), 31 * 31) > 1e-4


def test_words_of_64_bits_are_shuffled_as_those_of_32():
    labels = np.array([0, 1, 255, 3, 2, 255, 0], np.uint8)
    words, place_bits = _in_order(
        labels, 1 << 31, np.random.SeedSequence(0), None, np.random.SeedSequence(0)
    )
    assert words.dtype == np.uint64
    narrow, _ = _in_order(labels, 4, np.random.SeedSequence(0), None, np.random.SeedSequence(0))
    assert narrow.dtype == np.uint32
    expected = {(0, 0), (1, 1), (3, 3), (4, 2), (6, 0)}
    for order in (words, narrow):
        pairs = {(int(w) & (1 << place_bits) - 1, int(w) >> place_bits) for w in order}
        assert pairs == expected
