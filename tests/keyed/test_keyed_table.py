"""The table that workers share: lookups, publishing, and processes however they are started."""

import gc
import multiprocessing
import os
import pickle

import numpy as np
import pytest

from infobatch.keyed.chance import hash_keys
from infobatch.keyed.keeps import Keeps
from infobatch.keyed.table import NUMBER, Board, Table
from infobatch.plan.draw import DROPPED


def published(board, keys, kept):
    hashes = hash_keys(keys)
    order = hashes.argsort()
    labels = np.where(np.isin(np.array(keys), list(kept)), 0, DROPPED).astype(np.uint8)
    return board.publish(hashes[order], labels[order])


@pytest.mark.parametrize("count", [0, 1, 7, 8, 17, 1000, 30_000])
def test_lookups_are_those_of_a_dictionary(count):
    rng = np.random.default_rng(count)
    hashes = np.unique(rng.integers(0, 2**64, count, np.uint64))
    if count > 8:
        hashes[[0, -1]] = 0, 2**64 - 1  # the edges
    table = Board().publish(hashes, np.zeros(len(hashes), np.uint8))
    rows = {key: row for row, key in enumerate(hashes.tolist())}
    asked = np.concatenate([hashes, hashes + np.uint64(1), rng.integers(0, 2**64, 100, np.uint64)])
    expected = [rows.get(key, -1) for key in asked.tolist()]
    assert table.rows(asked).tolist() == expected
    assert all(map(table.keeps, asked.tolist()))
    assert table.asked.all()
    left_out = Board().publish(hashes, np.full(len(hashes), DROPPED, np.uint8))
    assert [left_out.keeps(key) for key in asked.tolist()] == [
        key not in rows for key in asked.tolist()
    ]
    assert not left_out.asked.any()


def test_new_decisions_do_not_rewrite_the_keys():
    board = Board()
    first = published(board, [1, 2, 3], {1})
    second = board.publish(first.hashes, np.zeros(3, np.uint8))
    assert second.keys_number == first.keys_number
    assert sorted(path.name for path in board.folder.iterdir()) == [
        "current",
        "decisions-2",
        "keys-1",
    ]
    third = published(board, [1, 2, 3, 4], {1})
    assert third.keys_number == 3
    assert len(first.hashes) == 3, "a mapped table stays as it was"
    assert first.labels.tolist().count(DROPPED) == 2


def test_a_table_is_current_only_when_it_is_complete(monkeypatch):
    board = Board()
    published(board, [1, 2], {1})
    keeps = Keeps(board.folder, "__key__")
    assert keeps(1)
    with monkeypatch.context() as patched:
        patched.setattr(Table, "__init__", broken)
        with pytest.raises(OSError, match="No space"):
            published(board, [1, 2], {2})
    assert board.current[NUMBER] == 1
    assert keeps(1)
    assert not keeps(2)


def broken(self, folder, number):
    raise OSError("No space left on device")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on Windows")
def test_the_folder_goes_with_its_owner_and_not_with_a_fork(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    board = Board()
    child = os.fork()
    if not child:
        del board
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert board.folder.exists()
    del board
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_what_workers_get_is_small():
    board = Board()
    published(board, list(range(10_000)), {1})
    keeps = Keeps(board.folder, "id")
    keeps(1)
    assert len(pickle.dumps(keeps)) < 500
    assert pickle.loads(pickle.dumps(keeps))({"id": 1})


def answers(keeps, asked, answered):
    """A worker that lives for many epochs."""
    for keys in iter(asked.get, None):
        answered.put([keeps(key) for key in keys])


@pytest.mark.parametrize("start", multiprocessing.get_all_start_methods())
def test_workers_follow_without_a_message(start):
    """A process that was started before there was any key sees each table as it is published."""
    context = multiprocessing.get_context(start)
    board = Board()
    board.publish(np.empty(0, np.uint64), np.empty(0, np.uint8))
    asked, answered = context.Queue(), context.Queue()
    worker = context.Process(
        target=answers, args=(Keeps(board.folder, "k"), asked, answered), daemon=True
    )
    worker.start()
    keys = list(range(300))

    def ask():
        asked.put(keys)
        return answered.get(timeout=60)

    assert all(ask()), "nothing is known yet"
    rng = np.random.default_rng(0)
    for count in (200, 300, 300):
        kept = set(rng.choice(count, count // 2, replace=False).tolist())
        table = published(board, keys[:count], kept)
        assert [key for key, answer in zip(keys, ask(), strict=True) if answer] == sorted(
            kept | set(keys[count:])
        )
        rows = table.rows(hash_keys(sorted(kept)))
        assert table.asked[rows].all(), "the training process sees who was asked for"
        assert table.asked.sum() == len(kept)
    asked.put(None)
    worker.join(60)
    assert worker.exitcode == 0


def test_a_table_that_is_gone():
    board = Board()
    published(board, [1], {1})
    keeps = Keeps(board.folder, "k")
    sent = pickle.dumps(keeps)
    for path in board.folder.glob("keys-*"):
        path.unlink()
    with pytest.raises(RuntimeError, match=r"^KeyedPruner.keeps\(\) found no table in .*: the pru"):
        keeps(1)
    (board.folder / "current").unlink()
    with pytest.raises(RuntimeError, match="the worker is on another machine"):
        pickle.loads(sent)
