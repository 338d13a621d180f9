"""The embedded data."""

import pytest

from infobatch.lab.datasets import fashion


def test_embedded_data():
    train_x, train_y, test_x, test_y = fashion.load()
    assert train_x.shape == (12_000, 1, 28, 28)
    assert test_x.shape == (2_000, 1, 28, 28)
    assert train_y.bincount().tolist() == [1_200] * 10
    assert test_y.bincount().tolist() == [200] * 10
    assert train_x.mean().item() == pytest.approx(0, abs=1e-4)
