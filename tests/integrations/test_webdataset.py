"""KeyedPruner with WebDataset: real archives, workers, shuffling, ranks, and torchdata's loader."""

import gc
import os
import subprocess
import sys
import time
from multiprocessing import get_context

import pytest
import torch
import webdataset as wds
from torch.utils.data import default_collate
from torchdata.stateful_dataloader import StatefulDataLoader

import infobatch
import keyed_archives
from keyed_archives import EPOCHS, KEYS, expected_epochs, loader_of, pipeline, train_epoch
from keyed_runs import losses_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),  # WebDataset's archives
]


@pytest.fixture(autouse=True)
def _collected():
    """What WebDataset leaves open is closed here, where its warning is ignored."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archives")
    keyed_archives.write_archives(folder)
    return folder


@pytest.fixture(scope="module")
def urls(folder):
    return str(folder / f"train-{{0..{keyed_archives.SHARDS - 1}}}.tar")


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (0, {}),
        (2, {"multiprocessing_context": "fork"}),
        (2, {"multiprocessing_context": "fork", "persistent_workers": True, "prefetch_factor": 4}),
        (2, {"multiprocessing_context": "spawn", "persistent_workers": True}),
        (3, {"multiprocessing_context": "fork", "in_order": False}),
    ],
)
def test_every_epoch_keeps_what_was_decided(urls, workers, options):
    """With its weight, however the loader reads: the same samples in every setting."""
    expected, reference = expected_epochs()
    pruner = infobatch.KeyedPruner(EPOCHS, delta=1.0)
    loader = loader_of(urls, pruner.keeps, workers, **options)
    orders = []
    for epoch in range(EPOCHS):
        pruner.set_epoch(epoch)
        visited = train_epoch(pruner, loader, epoch)
        assert visited == expected[epoch]
        orders.append(list(visited))
    pruner.set_epoch(EPOCHS)
    assert torch.equal(pruner.scores(KEYS), reference.scores(KEYS))
    assert str(pruner.savings) == str(reference.savings)
    assert pruner.savings.saved > 50
    assert orders[0] != KEYS, "it was shuffled"


def test_what_is_left_out_is_not_decoded(urls):
    pruner = infobatch.KeyedPruner(EPOCHS, delta=1.0)
    decoded = []
    data = wds.WebDataset(urls, shardshuffle=False).select(pruner.keeps)
    data = data.map(lambda sample: decoded.append(sample["__key__"]) or sample).decode("torchrgb")
    for epoch in range(2):
        pruner.set_epoch(epoch)
        decoded.clear()
        for sample in data:
            pruner.update(losses_of([sample["__key__"]], epoch), key=[sample["__key__"]])
    assert len(decoded) == pruner.epoch_length < len(KEYS)


def test_keeps_after_decoding_is_told(urls):
    """Also where workers decode: the training process warns."""
    pruner = infobatch.KeyedPruner(EPOCHS)
    data = wds.WebDataset(urls, shardshuffle=False).decode("torchrgb").select(pruner.keeps)
    loader = torch.utils.data.DataLoader(
        data.to_tuple("__key__", "jpg"), 8, num_workers=1, collate_fn=default_collate
    )
    (key, _), *_ = loader
    with pytest.warns(UserWarning, match=r"^KeyedPruner.keeps\(\) got samples that had been deco"):
        pruner.update(losses_of(key, 0), key=key)


@pytest.mark.parametrize("persistent", [False, True])
def test_leaving_an_epoch_early(urls, persistent):
    """What workers had read ahead is not seen in the next epoch, and not taken for savings."""
    pruner = infobatch.KeyedPruner(EPOCHS, delta=1.0)
    loader = loader_of(urls, pruner.keeps, 2, persistent_workers=persistent, prefetch_factor=4)
    train_epoch(pruner, loader, 0)
    pruner.set_epoch(1)
    for step, (key, _, _) in enumerate(loader):
        pruner.update(losses_of(key, 1), key=key)
        if step == 1:
            break
    pruner.set_epoch(2)
    visited = train_epoch(pruner, loader, 2)
    assert len(visited) == pruner.epoch_length < len(KEYS)
    second = pruner.savings.epochs[1]
    assert second.made == 16
    assert second.saved == (len(KEYS) - second.planned) * 16 // second.planned


@pytest.mark.parametrize("workers", [1, 2])
def test_a_loader_that_had_begun_before_set_epoch_raises(urls, workers):
    """Its samples were chosen by another epoch's decisions, and would get the wrong weights."""
    pruner = infobatch.KeyedPruner(EPOCHS, delta=1.0)
    asked = get_context("fork").Value("i", 0)

    def keeps(sample):
        answer = pruner.keeps(sample)
        with asked.get_lock():
            asked.value += 1
        return answer

    loader = loader_of(urls, keeps, workers, prefetch_factor=len(KEYS))
    train_epoch(pruner, loader, 0)
    pruner.set_epoch(1)
    batches = iter(loader)
    next(batches)
    while asked.value < 2 * len(KEYS):  # everything is read ahead
        time.sleep(0.01)
    pruner.set_epoch(2)
    key, _, _ = next(batches)
    with pytest.raises(
        RuntimeError, match=r"of a batch's 8 samples were not chosen for epoch 2, such as"
    ):
        pruner.update(losses_of(key, 1), key=key)


def test_keys_that_repeat_between_archives(tmp_path):
    """Names that count from 0 in each archive: told in the first epoch, and how to mend it.

    WebDataset's map() restores ``__key__``, so the mended key has another name.
    """
    for shard in range(3):
        with wds.TarWriter(str(tmp_path / f"{shard}.tar")) as archive:
            for number in range(40):
                archive.write({"__key__": f"{number:04d}", "cls": "1"})
    urls = str(tmp_path / "{0..2}.tar")

    def epoch(pruner, data, name):
        for sample in data.select(pruner.keeps):
            key = [sample[name]]
            pruner.update(losses_of(key, 0), key=key)

    data = wds.WebDataset(urls, shardshuffle=False)
    with pytest.raises(
        RuntimeError, match=r"but only 40 different ones.*together with the archive's"
    ):
        epoch(infobatch.KeyedPruner(3), data, "__key__")
    pruner = infobatch.KeyedPruner(3, key="__id__")
    epoch(pruner, data.map(with_id), "__id__")
    pruner.set_epoch(1)
    assert pruner.num_keys == 120


def with_id(sample):
    return {**sample, "__id__": f"{sample['__url__']}/{sample['__key__']}"}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_stateful_loader_resumes_within_an_epoch(urls, workers, epoch):
    """Bit for bit: the same batches as without the stop."""

    def parts():
        pruner = infobatch.KeyedPruner(EPOCHS, delta=1.0)
        data = pipeline(urls, pruner.keeps)
        loader = StatefulDataLoader(
            data, batch_size=8, num_workers=workers, collate_fn=default_collate
        )
        return pruner, loader

    def run(pruner, loader, stop=None):
        steps = []
        for number in range(pruner.epoch, EPOCHS):
            pruner.set_epoch(number)
            for key, _, _ in loader:
                steps.append((key, pruner.update(losses_of(key, number), key=key).item()))
                if number == epoch and len(steps) == stop:
                    return steps, (pruner.state_dict(), loader.state_dict())
        pruner.set_epoch(EPOCHS)
        return steps, (pruner.scores(KEYS), str(pruner.savings))

    straight, results = run(*parts())
    stop = 3 if epoch == 0 else 15 + 2
    before, (state, loader_state) = run(*parts(), stop=stop)
    pruner, loader = parts()
    pruner.load_state_dict(state, loader_resumes=True)
    loader.load_state_dict(loader_state)
    after, resumed = run(pruner, loader)
    assert before + after == straight
    assert torch.equal(resumed[0], results[0])
    assert resumed[1] == results[1]


@pytest.fixture(scope="module")
def two_ranks(folder):
    """What two gloo ranks left: all cases in one start, which takes longer than they do."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    run = subprocess.run(
        [*command, keyed_archives.__file__, str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    ranks = [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(2)]
    return {case: (ranks[0][case], ranks[1][case]) for case in ranks[0]}


@pytest.mark.parametrize("case", ["drive", "drive_sharded"])
def test_two_ranks_with_workers(two_ranks, case):
    """Together they visit what one process would, and know the same scores."""
    expected, reference = expected_epochs()
    first, second = two_ranks[case]
    for epoch in range(EPOCHS):
        visited = first["visits"][epoch], second["visits"][epoch]
        assert not set(visited[0]) & set(visited[1])
        assert visited[0] | visited[1] == expected[epoch]
    assert first["lengths"] == second["lengths"] == [None, len(expected[1]), len(expected[2])]
    assert first["savings"] == second["savings"] == str(reference.savings)
    scores = torch.stack([first["scores"], second["scores"]])
    if case == "drive":
        assert torch.equal(scores[0], scores[1])
    else:
        assert (scores.isnan().sum(0) == 1).all(), "each key has one owner"
    assert torch.equal(scores.nanmean(0), reference.scores(KEYS))


def test_ranks_read_other_shards_in_every_epoch(two_ranks):
    first, _ = two_ranks["drive"]
    assert {key[0] for key in first["visits"][0]} != {key[0] for key in first["visits"][1]}


def test_ranks_with_different_numbers_of_batches(two_ranks):
    first, second = two_ranks["joined"]
    assert all(one > other for one, other in zip(first["steps"], second["steps"], strict=True))
    assert torch.equal(first["weight"], second["weight"])


def test_ranks_with_as_many_batches_each(two_ranks):
    first, second = two_ranks["equalised"]
    assert first["steps"] == second["steps"]
    assert first["steps"][1] < first["steps"][0]
    assert first["lengths"][:2] == [2 * 8 * steps for steps in first["steps"][:2]]
