"""KeyedPruner with litdata, as on docs/streamed.md: run by `make test` with litdata's folder on the path."""

import litdata
import numpy as np
import pytest
import torch
from litdata.streaming import Cache
from torch import nn

import infobatch
from document_examples import examples
from keyed_runs import losses_of

(PAGE,) = [block for block in examples("docs/streamed.md") if "import litdata" in block]
CLASS = PAGE.partition("pruner = ")[0]
COUNT, EPOCHS = 130, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chunks")
    cache = Cache(str(folder), chunk_size=16)
    for number in range(COUNT):
        cache[number] = {"x": np.array([number % 2, 1], np.float32), "y": number % 2}
    cache.done()
    cache.merge()
    return str(folder)


def keyed_dataset():
    names = {}
    exec(compile(CLASS, "streamed.md", "exec"), names)
    return names["KeyedDataset"]


def test_page(folder):
    torch.manual_seed(0)
    names = {
        "infobatch": infobatch,
        "num_epochs": EPOCHS,
        "folder": folder,
        "criterion": nn.CrossEntropyLoss(reduction="none"),
        "linear": nn.Linear(2, 2),
    }
    # A class that workers get must be importable, unless they are forked.
    exec(compile(PAGE, "streamed.md", "exec"), names)
    pruner = names["pruner"]
    assert len(pruner.savings.epochs) == EPOCHS
    assert pruner.num_keys == COUNT
    assert 0 < pruner.savings.saved < 3 * COUNT


@pytest.mark.parametrize("workers", [0, 2])
def test_every_epoch_keeps_what_was_decided(folder, workers):
    reference = infobatch.KeyedPruner(EPOCHS, delta=1.0)
    pruner = infobatch.KeyedPruner(EPOCHS, delta=1.0)
    read = []

    class Counted(keyed_dataset()):
        def transform(self, item):
            read.append(item["y"])
            return item

    stream = Counted(folder, keeps=pruner.keeps, shuffle=True)
    loader = litdata.StreamingDataLoader(stream, batch_size=8, num_workers=workers)
    for epoch in range(EPOCHS):
        read.clear()
        for recorder in (reference, pruner):
            recorder.set_epoch(epoch)
        expected = list(filter(reference.keeps, range(COUNT)))
        reference.update(losses_of(expected, epoch), key=expected)
        visited = []
        for key, _ in loader:
            pruner.update(losses_of(key.tolist(), epoch), key=key)
            visited += key.tolist()
        assert sorted(visited) == expected
        assert visited != expected
        if workers == 0:
            assert len(read) <= len(expected) + 2, "what is left out is not read"
    assert len(expected) < COUNT


def test_resumed_within_an_epoch(folder):
    """The loader starts again, and reads what had not been trained on."""
    Dataset = keyed_dataset()

    def loader_of(pruner):
        return litdata.StreamingDataLoader(
            Dataset(folder, keeps=pruner.keeps, shuffle=True), batch_size=8
        )

    pruner = infobatch.KeyedPruner(EPOCHS, delta=1.0)
    pruner.update(losses_of(range(COUNT), 0), key=list(range(COUNT)))
    pruner.set_epoch(1)
    expected = list(filter(pruner.keeps, range(COUNT)))
    done = []
    for key, _ in loader_of(pruner):
        pruner.update(losses_of(key.tolist(), 1), key=key)
        done += key.tolist()
        if len(done) == 32:
            break
    resumed = infobatch.KeyedPruner(EPOCHS, delta=1.0)
    resumed.load_state_dict(pruner.state_dict())
    rest = [number for key, _ in loader_of(resumed) for number in key.tolist()]
    assert sorted(done + rest) == expected
