"""KeyedPruner with Hugging Face data sets in streaming mode: parquet files, workers, resuming."""

import datasets
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import infobatch
from keyed_runs import losses_of

FILES, PER_FILE, EPOCHS = 4, 30, 3
IDS = list(range(FILES * PER_FILE))
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parquet")
    for number in range(FILES):
        ids = IDS[number * PER_FILE : (number + 1) * PER_FILE]
        rows = {"id": ids, "name": [f"row {i}" for i in ids], "x": [[float(i), 1.0] for i in ids]}
        datasets.Dataset.from_dict(rows).to_parquet(folder / f"{number}.parquet")
    return [str(path) for path in sorted(folder.iterdir())]


def streamed(files, tmp_path):
    return datasets.load_dataset(
        "parquet", data_files=files, split="train", streaming=True, cache_dir=str(tmp_path)
    )


def expected_epochs(convert=int, **options):
    pruner = infobatch.KeyedPruner(EPOCHS, **{"delta": 1.0, **options})
    visits = []
    for epoch in range(EPOCHS):
        pruner.set_epoch(epoch)
        kept = [i for i in IDS if pruner.keeps(convert(i))]
        keys = [convert(i) for i in kept]
        visits.append(dict(zip(kept, pruner.weights(keys).tolist(), strict=True)))
        pruner.update(losses_of(kept, epoch), key=keys)
    return visits


def train(pruner, data, loader, key="id"):
    visits, decoded = [], []
    for epoch in range(EPOCHS):
        pruner.set_epoch(epoch)
        data.set_epoch(epoch)
        visited = {}
        for batch in loader:
            weights = pruner.weights(batch[key])
            ids = batch["id"].tolist()
            pruner.update(losses_of(ids, epoch), key=batch[key])
            visited |= dict(zip(ids, weights.tolist(), strict=True))
        visits.append(visited)
        decoded.append(list(visited))
    return visits, decoded


@pytest.mark.parametrize("workers", [0, 2])
def test_filter_with_a_key_column(files, tmp_path, workers):
    pruner = infobatch.KeyedPruner(EPOCHS, delta=1.0)
    data = streamed(files, tmp_path).shuffle(seed=0, buffer_size=20)
    data = data.filter(pruner.keeps, input_columns="id").with_format("torch")
    loader = DataLoader(data, batch_size=8, num_workers=workers)
    visits, orders = train(pruner, data, loader)
    assert visits == expected_epochs()
    assert orders[1] != sorted(orders[1])
    assert len(visits[2]) < len(IDS)


def test_whole_rows_and_text_keys(files, tmp_path):
    """Without input_columns, the row itself has the key."""
    pruner = infobatch.KeyedPruner(EPOCHS, delta=1.0, key="name")
    data = streamed(files, tmp_path).filter(pruner.keeps)
    visits, _ = train(pruner, data, DataLoader(data, batch_size=8), key="name")
    assert visits == expected_epochs(lambda i: f"row {i}")


def test_what_is_left_out_is_not_mapped(files, tmp_path):
    """Columns that are computed after the filter are computed for what is kept alone."""
    pruner = infobatch.KeyedPruner(EPOCHS, delta=1.0)
    mapped = []
    data = streamed(files, tmp_path).filter(pruner.keeps, input_columns="id")
    data = data.map(lambda row: mapped.append(row["id"]) or row)
    visits, _ = train(pruner, data, DataLoader(data, batch_size=8))
    assert len(mapped) == sum(map(len, visits)) < EPOCHS * len(IDS)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [4, 19])
def test_a_stateful_loader_resumes_within_an_epoch(files, tmp_path, workers, stop):
    """The data set's own state says where it was, in the first and in a pruned epoch: bit for bit."""

    def run(stop=None, state=None):
        pruner = infobatch.KeyedPruner(EPOCHS, delta=1.0)
        data = streamed(files, tmp_path).filter(pruner.keeps, input_columns="id")
        data = data.with_format("torch")
        loader = StatefulDataLoader(data, batch_size=8, num_workers=workers)
        if state is not None:
            pruner.load_state_dict(state[0], loader_resumes=True)
            loader.load_state_dict(state[1])
        steps = []
        for epoch in range(pruner.epoch, EPOCHS):
            pruner.set_epoch(epoch)
            data.set_epoch(epoch)  # otherwise each later pass starts where the first one resumed
            for batch in loader:
                ids = batch["id"].tolist()
                loss = pruner.update(losses_of(ids, epoch), key=batch["id"])
                steps.append((ids, loss.item()))
                if len(steps) == stop:
                    return steps, (pruner.state_dict(), loader.state_dict())
        pruner.set_epoch(EPOCHS)
        return steps, (pruner.scores(IDS), str(pruner.savings))

    straight, results = run()
    before, state = run(stop)
    after, resumed = run(state=state)
    assert before + after == straight
    assert torch.equal(resumed[0], results[0])
    assert resumed[1] == results[1]


def test_a_plain_loader_starts_the_epoch_again(files, tmp_path):
    """And reads what had not been trained on: every sample of the epoch once."""
    pruner = infobatch.KeyedPruner(EPOCHS, delta=1.0)
    data = streamed(files, tmp_path).filter(pruner.keeps, input_columns="id")
    done = []
    for batch in DataLoader(data, batch_size=8, num_workers=2):
        pruner.update(losses_of(batch["id"].tolist(), 0), key=batch["id"])
        done += batch["id"].tolist()
        if len(done) == 40:
            break
    resumed = infobatch.KeyedPruner(EPOCHS, delta=1.0)
    resumed.load_state_dict(pruner.state_dict())
    data = streamed(files, tmp_path).filter(resumed.keeps, input_columns="id")
    visits, _ = train(resumed, data, DataLoader(data, batch_size=8, num_workers=2))
    expected = expected_epochs()
    assert sorted([*done, *visits[0]]) == sorted(expected[0])
    assert visits[1:] == expected[1:]


@pytest.mark.filterwarnings("ignore:Parameter 'function'.*couldn't be hashed properly")
def test_a_filter_that_runs_only_once(files):
    """Dataset.filter, not streamed, is computed once and stored: told in the first pruned epoch."""
    pruner = infobatch.KeyedPruner(EPOCHS, delta=1.0)
    data = datasets.Dataset.from_dict({"id": IDS}).with_format("torch")
    data = data.filter(pruner.keeps, input_columns="id")
    loader = DataLoader(data, batch_size=8)
    with pytest.raises(RuntimeError, match="samples were not chosen for epoch 1"):
        train(pruner, infobatch.KeyedPruner(EPOCHS), loader)
