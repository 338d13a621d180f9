"""Scores in files: what one run has learned, and another starts from."""

import csv
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

import infobatch
from infobatch.memory import export
from infobatch.tracks import LastVisit, Visits, Window
from numbered import Numbered, loss_of, run_epoch
from rank_threads import on_ranks

SIZE, EPOCHS = 61, 5
SUFFIXES = (".parquet", ".csv", ".npz")
every_format = pytest.mark.parametrize("suffix", SUFFIXES)


def trained(epochs=3, **options):
    train_data = infobatch.InfoBatch(Numbered(SIZE), EPOCHS, delta=1.0, **options)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    visits = [run_epoch(train_data, loader, epoch) for epoch in range(epochs)]
    return train_data, visits


def columns_of(path):
    """Read a file without the library's help."""
    if path.suffix == ".parquet":
        return {name: values.to_numpy() for name, values in zip_table(pq.read_table(path))}
    if path.suffix == ".npz":
        with np.load(path) as file:
            return dict(file)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def zip_table(table):
    return zip(table.column_names, table.columns, strict=True)


@every_format
def test_what_a_file_has(tmp_path, suffix):
    tracks = [Visits(), LastVisit(), Window(2)]
    train_data, visits = trained(tracks=tracks)
    path = tmp_path / f"scores{suffix}"
    train_data.export_scores(path)
    columns = columns_of(path)
    assert list(columns) == ["index", "score", "visits", "age", "window_0", "window_1"]
    assert columns["index"].tolist() == list(range(SIZE))
    assert np.array_equal(columns["score"], train_data.scores.numpy()), "to the last digit"
    for sample in range(SIZE):
        epochs = [epoch for epoch, visited in enumerate(visits) if sample in visited]
        assert columns["visits"][sample] == len(epochs)
        assert columns["age"][sample] == len(visits) - epochs[-1], "1 for the latest epoch"
    assert np.array_equal(columns["window_1"], columns["score"])
    assert list(tmp_path.iterdir()) == [path]


@every_format
def test_ages_are_those_that_a_policy_sees_also_after_a_resume(tmp_path, suffix):
    train_data, _ = trained(tracks=[LastVisit()])
    resumed = infobatch.InfoBatch(Numbered(SIZE), EPOCHS, delta=1.0, tracks=[LastVisit()])
    resumed.load_state_dict(train_data.state_dict())
    ages = []
    for source in (train_data, resumed):
        source.export_scores(tmp_path / f"scores{suffix}")
        ages.append(columns_of(tmp_path / f"scores{suffix}")["age"].tolist())
    memory = resumed.pruner._course.current_memory()
    seen = infobatch.Samples(memory.scores, epoch=resumed.epoch, columns=memory.columns).age
    assert ages[0] == ages[1] == seen.tolist()
    assert min(ages[0]) == 1 < max(ages[0])


@every_format
def test_a_file_is_as_readable_as_any_other(tmp_path, suffix):
    (tmp_path / "plain").touch()
    train_data, _ = trained(1)
    train_data.export_scores(tmp_path / f"scores{suffix}")
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1


@every_format
def test_in_the_middle_of_an_epoch_the_latest_scores_are_in_it(tmp_path, suffix):
    train_data = infobatch.InfoBatch(Numbered(SIZE), EPOCHS, tracks=[LastVisit()])
    loader = DataLoader(train_data, 8, sampler=train_data.sampler)
    x, _ = next(batches := iter(loader))
    train_data.update(loss_of(x, 0))
    train_data.export_scores(tmp_path / f"scores{suffix}")
    columns = columns_of(tmp_path / f"scores{suffix}")
    seen = set(x.long().tolist())
    for sample in range(SIZE):
        score, age = columns["score"][sample], columns["age"][sample]
        if sample in seen:
            assert score == pytest.approx(loss_of(sample, 0), rel=1e-6)
            assert age == 1
        else:
            assert np.isnan(score)
            assert age == -1, "never"
    train_data.update(loss_of(next(batches)[0], 0))  # exporting has changed nothing


@pytest.mark.parametrize("source", [*SUFFIXES, "tensor", "array", "list", "half", "name"])
def test_the_first_epoch_of_a_second_run_is_pruned(tmp_path, source):
    train_data, _ = trained()
    scores = train_data.scores
    if source in SUFFIXES:
        known = tmp_path / f"scores{source}"
        train_data.export_scores(known)
    elif source == "name":
        known = str(tmp_path / "scores.csv")
        train_data.export_scores(known)
    else:
        known = {
            "tensor": scores,
            "array": scores.double().numpy(),
            "list": scores.tolist(),
            "half": scores.half(),
        }[source]
    second = infobatch.InfoBatch(Numbered(SIZE), EPOCHS, delta=1.0, seed=9, initial_scores=known)
    expected = infobatch.InfoBatch(Numbered(SIZE), EPOCHS, delta=1.0, seed=9)
    expected.load_state_dict({**train_data.state_dict(), "epoch": 0, "finished": -1, "seed": 9})
    assert len(second.plan) < SIZE
    if source != "half":
        assert torch.equal(second.scores, scores)
        assert second.plan.order.tolist() == expected.plan.order.tolist()
    assert second.plan.weights.sum().item() == pytest.approx(SIZE)
    assert second.savings.made == 0
    loader = DataLoader(second, 8, sampler=second.sampler)
    assert len(run_epoch(second, loader, 0)) == len(second.plan) == second.savings.epochs[0].made


def test_samples_that_have_no_score_are_visited():
    scores = np.arange(20, dtype=np.float32)
    scores[[1, 3]] = np.nan
    scores[[2, 4]] = np.inf
    pruner = infobatch.Pruner(20, EPOCHS, delta=1.0, initial_scores=scores)
    assert {1, 2, 3, 4} <= set(pruner.plan.order.tolist())
    assert pruner.scores.isnan().nonzero().flatten().tolist() == [1, 2, 3, 4]
    assert np.isinf(scores[2]), "what was passed is not changed"
    scores[:] = 0
    assert pruner.scores[19] == 19.0, "nor referred to"


def test_files_without_any_score(tmp_path):
    fresh = infobatch.Pruner(20, EPOCHS)
    fresh.export_scores(tmp_path / "scores.csv")
    pruner = infobatch.Pruner(20, EPOCHS, initial_scores=tmp_path / "scores.csv")
    assert pruner.plan.whole


@every_format
def test_a_file_with_some_of_the_samples(tmp_path, suffix):
    path = tmp_path / f"scores{suffix}"
    table = {"index": np.array([7, 2]), "score": np.array([1.5, 2.5], np.float32)}
    export._FORMATS[suffix][1](path, table)
    pruner = infobatch.Pruner(9, EPOCHS, initial_scores=path)
    assert pruner.scores[[2, 7]].tolist() == [2.5, 1.5]
    assert pruner.scores.isnan().sum() == 7


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("size", [40, 61, 96])
def test_pacing_does_not_rely_on_a_whole_first_epoch(size, given, drop_last):
    scores = np.random.default_rng(0).exponential(size=size)
    train_data = infobatch.InfoBatch(Numbered(size), EPOCHS, delta=1.0, initial_scores=scores)
    loader = DataLoader(train_data, 8, sampler=train_data.sampler, drop_last=drop_last)
    per_epoch = size // 8 if drop_last else -(-size // 8)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    inner = OneCycleLR(optimizer, 1.0, total_steps=per_epoch * EPOCHS)
    steps = {"steps_per_epoch": per_epoch} if given else {}
    schedule = infobatch.paced(inner, train_data, **steps)
    for epoch in range(EPOCHS):
        batches = 0
        for x, _ in loader:
            train_data.update(loss_of(x, epoch))
            optimizer.step()
            schedule.step()
            batches += 1
        assert inner.last_epoch == per_epoch * (epoch + 1)
        assert batches < per_epoch, "pruned from the first epoch on"


def test_a_warm_start_survives_a_resume(tmp_path):
    scores = np.random.default_rng(0).exponential(size=SIZE).astype(np.float32)
    first = infobatch.Pruner(SIZE, EPOCHS, delta=1.0, initial_scores=scores)
    batch = next(batches := iter(first.batch_sampler(8)))
    first.update(loss_of(torch.tensor(batch).float(), 0))
    second = infobatch.Pruner(SIZE, EPOCHS, delta=1.0)  # the state alone is enough
    second.load_state_dict(first.state_dict())
    rest = [sample for batch in batches for sample in batch]
    assert list(second.sampler) == rest


# Sharded scores.


@every_format
def test_each_rank_writes_its_own_samples(tmp_path, suffix):
    def work(pruner, rank):
        for epoch in range(2):
            for batch in pruner.batch_sampler(4):
                pruner.update(loss_of(torch.tensor(batch).float(), epoch))
        pruner.export_scores(tmp_path / f"rank-{rank}{suffix}")
        return pruner.scores

    results = on_ranks(2, work, SIZE, EPOCHS, delta=1.0, sharded=True)
    merged = np.full(SIZE, np.nan, np.float32)
    for rank, scores in enumerate(results):
        columns = columns_of(tmp_path / f"rank-{rank}{suffix}")
        assert columns["index"].tolist() == list(range(rank, SIZE, 2))
        assert np.array_equal(columns["score"], scores.numpy())
        merged[rank::2] = scores.numpy()
        alone = infobatch.Pruner(SIZE, EPOCHS, initial_scores=tmp_path / f"rank-{rank}{suffix}")
        assert alone.scores.isnan().sum() == len(range(1 - rank, SIZE, 2))

    def warm(pruner, rank):
        return pruner.scores, len(pruner.plan)

    for rank, (scores, planned) in enumerate(
        on_ranks(2, warm, SIZE, EPOCHS, delta=1.0, sharded=True, initial_scores=merged)
    ):
        assert torch.equal(scores, results[rank])
        assert planned < len(range(rank, SIZE, 2))


# Errors.


@pytest.mark.parametrize(
    ("scores", "text"),
    [
        (np.zeros(3), r"float64 of shape \(3,\), expected one number per sample \(5\), NaN where"),
        (torch.zeros(6), r"torch.float32 of shape \(6,\), expected one number per sample \(5\)"),
        (torch.zeros(5, 1), r"torch.float32 of shape \(5, 1\)"),
        (np.zeros(5, bool), r"bool of shape \(5,\), expected one number per sample \(5\)"),
        (torch.zeros(5, dtype=torch.bool), r"torch.bool of shape \(5,\)"),
    ],
)
def test_scores_of_another_shape_or_kind(scores, text):
    with pytest.raises(ValueError, match=rf"^initial_scores got {text}"):
        infobatch.Pruner(5, EPOCHS, initial_scores=scores)


@pytest.mark.parametrize("name", ["scores.txt", "scores", "scores.PARQUET"])
def test_another_suffix(tmp_path, name):
    text = rf"got '.*{name}', expected a file name that ends in \.parquet, \.csv, \.npz\.$"
    train_data, _ = trained(1)
    with pytest.raises(ValueError, match=r"^export_scores\(\) " + text):
        train_data.export_scores(tmp_path / name)
    with pytest.raises(ValueError, match=r"^initial_scores " + text):
        infobatch.Pruner(5, EPOCHS, initial_scores=str(tmp_path / name))
    assert list(tmp_path.iterdir()) == []


@every_format
def test_a_file_that_somebody_else_wrote(tmp_path, suffix):
    path = tmp_path / f"scores{suffix}"
    write = export._FORMATS[suffix][1]
    write(path, {"sample": np.arange(5), "score": np.ones(5)})
    with pytest.raises(
        ValueError,
        match=rf"scores{suffix}' has the columns \['sample', 'score'\], expected 'index' and 'score', "
        r"as export_scores\(\) writes them",
    ):
        infobatch.Pruner(5, EPOCHS, initial_scores=path)
    for index in ([0, 5], [-1, 2]):
        write(path, {"index": np.array(index), "score": np.ones(2)})
        with pytest.raises(
            ValueError,
            match=rf"has scores for the samples {index[0]} to {index[1]}, expected 0 to 4\. Scores "
            r"belong to samples: use a file from the same data\.",
        ):
            infobatch.Pruner(5, EPOCHS, initial_scores=path)


def test_a_csv_file_that_went_through_a_table_program(tmp_path):
    """With a column of row numbers, one of text, a cell and a row left empty."""
    path = tmp_path / "scores.csv"
    path.write_text(",index,score,label\n0,0,1.5,cat\n1,2,,dog\n\n2,3,0.5,cat\n")
    scores = infobatch.Pruner(5, EPOCHS, initial_scores=path).scores
    assert scores.nan_to_num(-1).tolist() == [1.5, -1, -1, 0.5, -1]


@pytest.mark.parametrize("index", [[0, 1, 1], [0, 0.5, 1], [0, np.nan, 1]])
@every_format
def test_samples_that_are_named_twice_or_by_no_number(tmp_path, suffix, index):
    path = tmp_path / f"scores{suffix}"
    export._FORMATS[suffix][1](path, {"index": np.array(index), "score": np.ones(3)})
    with pytest.raises(
        ValueError,
        match=rf"scores{suffix}' has indices that are not integers, or one index twice, in "
        r"its column 'index'\. Expected one row for each sample that has a score\.",
    ):
        infobatch.Pruner(5, EPOCHS, initial_scores=path)


def test_scores_that_are_text(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text("index,score\n0,high\n1,low\n")
    with pytest.raises(
        ValueError,
        match=r"scores\.csv' has values that are not numbers in its column 'score' \(.*'high'.*\)\. "
        r"Expected what export_scores\(\) writes; a score may be missing\.",
    ):
        infobatch.Pruner(5, EPOCHS, initial_scores=path)


def test_a_table_of_several_parts(tmp_path):
    """As other tools write them, in chunks."""
    parts = [pa.table({"index": [k], "score": [float(k)]}) for k in range(5)]
    pq.write_table(pa.concat_tables(parts), tmp_path / "scores.parquet", row_group_size=2)
    pruner = infobatch.Pruner(5, EPOCHS, initial_scores=tmp_path / "scores.parquet")
    assert pruner.scores.tolist() == [0, 1, 2, 3, 4]


@every_format
def test_an_existing_file_survives_a_write_that_fails(tmp_path, suffix, monkeypatch):
    path = tmp_path / f"scores{suffix}"
    train_data, _ = trained(1)
    train_data.export_scores(path)
    before = path.read_bytes()

    def fail(part, table):
        part.write_bytes(b"half of it")
        raise OSError("no space left")

    monkeypatch.setitem(export._FORMATS, suffix, (None, fail))
    with pytest.raises(OSError, match="no space left"):
        train_data.export_scores(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path], "nothing is left lying around"


@every_format
def test_an_existing_file_is_replaced(tmp_path, suffix):
    path = tmp_path / f"scores{suffix}"
    path.write_text("something else")
    train_data, _ = trained(1)
    train_data.export_scores(path)
    assert len(columns_of(path)["index"]) == SIZE


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    train_data, _ = trained(1)
    text = r"needs the package pyarrow: pip install pyarrow\. Or use \.csv or \.npz\."
    with pytest.raises(ImportError, match=text):
        train_data.export_scores(tmp_path / "scores.parquet")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "scores.parquet").touch()
    with pytest.raises(ImportError, match=text):
        infobatch.Pruner(5, EPOCHS, initial_scores=tmp_path / "scores.parquet")
    train_data.export_scores(tmp_path / "scores.csv")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        infobatch.Pruner(5, EPOCHS, initial_scores=tmp_path / "scores.csv")
