"""A training step that is a pure function: weights in, losses out, compiled as a whole."""

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

import infobatch
from numbered import Numbered, loss_of

pytestmark = [  # torch's own, when it compiles
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
SIZE, BATCH, EPOCHS = 103, 8, 4


def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SIZE, 6, generator=generator)
    return TensorDataset(x, (x[:, :3].sum(1) > 0).long())


def training(*, compiled, pad=True):
    """A linear model, trained by a step that knows nothing of pruning but its weights."""
    torch.manual_seed(0)
    model = nn.Linear(6, 2)
    criterion = nn.CrossEntropyLoss(reduction="none")

    def losses_and_mean(x, y, weights):
        losses = criterion(model(x), y)
        return losses, (weights * losses).mean()

    if compiled:
        torch._dynamo.reset()
        counters.clear()
        losses_and_mean = torch.compile(losses_and_mean, fullgraph=True, dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    train_data = infobatch.InfoBatch(problem(), EPOCHS, delta=0.75)
    loader = DataLoader(train_data, batch_sampler=train_data.batch_sampler(BATCH, pad=pad))
    shapes = set()
    for _ in range(EPOCHS):
        for x, y in loader:
            losses, loss = losses_and_mean(x, y, train_data.batch_weights())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            train_data.record(losses)
            shapes.add(len(x))
    return train_data, model, shapes


def updating():
    """The same training by ``update``."""
    torch.manual_seed(0)
    model = nn.Linear(6, 2)
    criterion = nn.CrossEntropyLoss(reduction="none")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    train_data = infobatch.InfoBatch(problem(), EPOCHS, delta=0.75)
    loader = DataLoader(train_data, batch_sampler=train_data.batch_sampler(BATCH))
    for _ in range(EPOCHS):
        for x, y in loader:
            train_data.update(criterion(model(x), y)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return train_data, model


@pytest.mark.parametrize("pad", [False, True])
def test_it_trains_like_update(pad):
    expected_data, expected = updating()
    train_data, model, shapes = training(compiled=False, pad=pad)
    assert expected_data.savings.saved > 0
    for epoch, expected_epoch in zip(
        train_data.savings.epochs, expected_data.savings.epochs, strict=True
    ):
        assert (epoch.planned, epoch.made) == (expected_epoch.planned, expected_epoch.made)
        assert epoch.thresholds == pytest.approx(expected_epoch.thresholds, rel=1e-5)
        assert epoch.realised_noise == pytest.approx(expected_epoch.realised_noise, rel=1e-4)
    torch.testing.assert_close(model.weight, expected.weight)
    torch.testing.assert_close(train_data.scores, expected_data.scores)
    assert shapes == {BATCH} if pad else len(shapes) > 1


def test_the_whole_step_is_one_graph_in_whole_and_pruned_epochs():
    _, expected, _ = training(compiled=False)
    train_data, model, shapes = training(compiled=True)
    assert shapes == {BATCH}
    assert any(epoch.planned < epoch.full for epoch in train_data.savings.epochs)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    torch.testing.assert_close(model.weight, expected.weight)


def test_update_inside_a_compiled_function_is_one_graph_break():
    _, expected = updating()
    torch.manual_seed(0)
    model = nn.Linear(6, 2)
    criterion = nn.CrossEntropyLoss(reduction="none")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    train_data = infobatch.InfoBatch(problem(), EPOCHS, delta=0.75)
    loader = DataLoader(
        train_data, batch_sampler=train_data.batch_sampler(BATCH, pad=True)
    )  # one shape
    torch._dynamo.reset()
    counters.clear()

    @torch.compile
    def step(x, y):
        return train_data.update(criterion(model(x), y)) * 1.0

    for _ in range(EPOCHS):
        for x, y in loader:
            step(x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert sum(counters["graph_break"].values()) == 1
    assert counters["stats"]["unique_graphs"] == 2, "before update() and after it; never again"
    torch.testing.assert_close(model.weight, expected.weight)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 64])
@pytest.mark.parametrize("workers", [0, 2])
def test_padding_visits_every_sample_once(size, workers):
    train_data = infobatch.InfoBatch(Numbered(size), 3, delta=1.0)
    sampler = train_data.batch_sampler(8, pad=True)
    loader = DataLoader(train_data, batch_sampler=sampler, num_workers=workers)
    for epoch in range(3):
        visited, total, batches = [], 0.0, 0
        for x, _ in loader:
            weights = train_data.batch_weights()
            losses = loss_of(x, epoch)
            assert len(x) == len(weights) == 8
            batches += 1
            visited += x[weights > 0].long().tolist()
            real = int((weights > 0).sum())
            expected = (weights * losses).mean()
            total += float(weights.sum()) * real / 8
            torch.testing.assert_close(train_data.update(losses), expected)
        assert batches == len(loader) == -(-len(visited) // 8)
        assert visited == train_data.plan.order.tolist()
        assert total == pytest.approx(size), "the weights sum to the number of samples"
        for sample in visited:
            assert train_data.scores[sample].item() == pytest.approx(
                loss_of(sample, epoch), abs=1e-6
            )


def test_resuming_in_the_middle_of_a_padded_epoch():
    def run(stop=None, state=None):
        train_data = infobatch.InfoBatch(Numbered(61), 3, delta=1.0)
        if state is not None:
            train_data.load_state_dict(state)
        loader = DataLoader(train_data, batch_sampler=train_data.batch_sampler(8, pad=True))
        trace = []
        for epoch in range(train_data.epoch, 3):
            for x, _ in loader:
                weights = train_data.batch_weights()
                trace.append((x.long().tolist(), weights.tolist()))
                train_data.record(loss_of(x, epoch))
                if len(trace) == stop:
                    return trace, train_data.state_dict()
        return trace, train_data.scores

    whole, scores = run()
    for stop in (3, 8, 11):
        before, state = run(stop=stop)
        after, resumed = run(state=state)
        assert before + after == whole
        assert torch.equal(resumed, scores)


def test_with_the_index_in_the_batch():
    pruner = infobatch.Pruner(40, 3, delta=1.0)
    for epoch in range(3):
        for index in map(torch.tensor, BatchSampler(pruner.sampler, 8, drop_last=False)):
            losses = loss_of(index.float(), epoch)
            weights = pruner.batch_weights(index=index)
            mean = (weights * losses).mean()
            torch.testing.assert_close(pruner.reweight(losses, index=index), mean)
            pruner.record(losses, index=index)
    assert pruner.savings.saved > 0
    left_out = pruner.left_out[:1]
    for call in (pruner.batch_weights, lambda index: pruner.record(torch.ones(1), index=index)):
        pruner.set_epoch(2)
        left_out = torch.tensor(sorted(set(range(40)) - set(pruner.plan.order.tolist()))[:1])
        with pytest.raises(IndexError, match="got samples that this epoch's plan leaves out"):
            call(index=left_out)


def test_padding_with_the_index_in_the_batch_raises():
    pruner = infobatch.Pruner(20, 3)
    batch = next(iter(pruner.batch_sampler(8, pad=True)))
    with pytest.raises(
        RuntimeError,
        match=r"^update\(index=…\) got a batch of batch_sampler\(pad=True\), expected the form without "
        r"index: the index cannot tell the repeats of a padded batch, whose weight is 0, from the "
        r"samples\. Use pad=False, or leave index= out\.$",
    ):
        pruner.update(torch.ones(8), index=torch.tensor(batch))


@pytest.mark.parametrize("other", [{"drop_last": True}, {"even": True}, {"shrink": "batch"}])
def test_padding_excludes_other_ways_to_end_an_epoch(other):
    pruner = infobatch.Pruner(20, 3)
    with pytest.raises(
        ValueError, match=r"^batch_sampler\(pad=True\) got drop_last=.*expected drop_l"
    ):
        pruner.batch_sampler(8, pad=True, **other)


def test_weights_before_any_batch_raise():
    train_data = infobatch.InfoBatch(Numbered(20), 3)
    with pytest.raises(
        RuntimeError, match=r"^batch_weights\(\) was called before the sampler issued"
    ):
        train_data.batch_weights()


def test_the_size_of_a_batch_must_be_known():
    train_data = infobatch.InfoBatch(Numbered(20), 3)
    next(iter(train_data.sampler))  # no batches
    with pytest.raises(RuntimeError, match=r"^batch_weights\(\) cannot tell the size of the batch"):
        train_data.batch_weights()


@pytest.mark.parametrize("form", ["sampler", "batch_sampler", "shrink"])
def test_without_a_batch_that_waits_for_its_losses(form):
    train_data = infobatch.InfoBatch(Numbered(20), 3)
    batches = train_data.batch_sampler(4, shrink="batch" if form == "shrink" else "epoch")
    by_index = {"sampler": train_data.sampler, "batch_size": 4}
    loader = DataLoader(
        train_data, **(by_index if form == "sampler" else {"batch_sampler": batches})
    )
    for x, _ in loader:
        losses = loss_of(x, 0)
        mean = train_data.update(losses)
        for call in ("skip", "batch_weights"):
            with pytest.raises(
                RuntimeError,
                match=rf"^{call}\(\) found no batch that waits for its losses: all samples that the sampler "
                r"has issued were updated or skipped\. Expected it after the loader has delivered a "
                r"batch, and before the batch's update\.$",
            ):
                getattr(train_data, call)()
        assert train_data.reweight(losses) == mean, "the last batch is still known"
    assert train_data.savings.made == 20


@pytest.mark.parametrize("call", ["update", "record", "reweight"])
def test_capture_in_a_cuda_graph_raises_and_names_the_pure_step(call, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    train_data = infobatch.InfoBatch(Numbered(20), 3)
    next(iter(DataLoader(train_data, 4, sampler=train_data.sampler)))
    with FakeTensorMode():
        losses = torch.empty(4, device="cuda")  # as far as it goes without a GPU
    with pytest.raises(
        RuntimeError,
        match=rf"^{call}\(\) was called while a CUDA graph is being captured, which would freeze this "
        r"batch's samples and weights in it\. Expected a captured step that is a pure function: pass it "
        r"batch_weights\(\), copied into a tensor of its own before each replay, and call "
        r"record\(losses\) after it, outside of the graph\. See docs/accelerators\.md\.$",
    ):
        getattr(train_data, call)(losses)
    train_data.update(torch.ones(4))  # nothing was changed
