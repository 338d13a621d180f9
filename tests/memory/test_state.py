"""The checkpoint's format: this version's, the one before, and what is refused."""

import io

import pytest
import torch

import infobatch
from infobatch.plan import fingerprint
from infobatch.tracks import Ema, LastVisit, Visits, Welford, Window
from numbered import loss_of

SIZE, EPOCHS, BATCH = 40, 6, 6
TRACKS = (Ema(0.5), Welford(), Visits(), LastVisit(), Window(2))


def train(pruner, *, until=EPOCHS, stop=None, by_index=False):
    """Train; return the visited samples, batch by batch. With ``stop``, leave after as many."""
    visits = []
    for epoch in range(pruner.epoch, until):
        for batch in pruner.batch_sampler(BATCH):
            index = torch.tensor(batch)
            pruner.update(loss_of(index.float(), epoch), index=index if by_index else None)
            visits.append(batch)
            if len(visits) == stop:
                return visits
    return visits


def through_a_file(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def old_state(pruner, visits, by_index=False):
    """A state in the layout of version 1, written by hand from what was visited."""
    first = torch.arange(SIZE).float()
    epoch = pruner.epoch
    losses = torch.empty(0)
    if visits and by_index:
        losses = torch.full((SIZE,), -torch.inf)
        losses[visits] = loss_of(torch.tensor(visits).float(), epoch)
    elif visits:
        losses = loss_of(torch.tensor(visits).float(), epoch)
    return {
        "version": 1,
        "num_samples": SIZE,
        "share": [0, 1],
        "seed": 0,
        "epoch": epoch,
        "finished": epoch - 1,
        "scores": loss_of(first, 0),
        "losses": losses,
        "losses_by": "index" if visits and by_index else "position",
        "plan_check": fingerprint(pruner.plan) if visits else 0,
        "batch": BATCH if visits else 0,
        "history": [[0, SIZE, SIZE, SIZE, 0]],
    }


def one_epoch_and(batches, by_index=False):
    """A pruner after its first epoch and some batches of the second, and the samples of these."""
    pruner = infobatch.Pruner(SIZE, EPOCHS, delta=1.0)
    train(pruner, until=1, by_index=by_index)
    pruner.set_epoch(1)
    visits = train(pruner, stop=batches, by_index=by_index) if batches else []
    return pruner, [sample for batch in visits for sample in batch]


@pytest.mark.parametrize("by_index", [False, True])
@pytest.mark.parametrize("batches", [0, 1, 3])
def test_a_state_of_version_1_continues_bit_for_bit(batches, by_index):
    straight = infobatch.Pruner(SIZE, EPOCHS, delta=1.0)
    expected = train(straight, by_index=by_index)
    pruner, visited = one_epoch_and(batches, by_index)
    state = through_a_file(old_state(pruner, visited, by_index))
    resumed = infobatch.Pruner(SIZE, EPOCHS, delta=1.0, tracks=[Visits()])
    resumed.load_state_dict(state)
    assert resumed.epoch == 1
    assert resumed.plan.order.tolist() == pruner.plan.order.tolist()
    rest = train(resumed, by_index=by_index)
    assert rest == expected[-(-SIZE // BATCH) + batches :]
    assert torch.equal(resumed.scores, straight.scores)
    assert [e.made for e in resumed.savings.epochs] == [e.made for e in straight.savings.epochs]
    assert resumed.state_dict()["version"] == 2


def first_edition_loss(sample, epoch):
    return (sample * 7919 + epoch * 104729) % 1000 / 100


def test_a_state_that_the_first_edition_wrote():
    """By commit 9ff798c, after 12 samples of epoch 1: what it drew then is drawn again."""
    losses = [2.99, 3.8, 5.95, 9.19, 5.14, 7.85, 5.7, 6.76, 7.29, 7.32, 3.24, 2.71]
    state = {
        "version": 1,
        "num_samples": 40,
        "share": [0, 1],
        "seed": 5,
        "epoch": 1,
        "finished": 0,
        "scores": torch.tensor([first_edition_loss(sample, 0) for sample in range(40)]),
        "losses": torch.tensor(losses),
        "losses_by": "position",
        "plan_check": 1393494935,
        "batch": 6,
        "history": [[0, 40, 40, 40, 0]],
    }
    pruner = infobatch.Pruner(40, 6, delta=1.0)
    pruner.load_state_dict(state)
    visited, rest = pruner.plan.order[:12].tolist(), pruner.plan.order[12:].tolist()
    assert [first_edition_loss(sample, 1) for sample in visited] == losses
    assert list(pruner.sampler) == rest
    for sample in visited:
        assert pruner.scores[sample].item() == pytest.approx(first_edition_loss(sample, 1))


def test_an_old_state_is_not_changed_by_loading_it():
    pruner, visited = one_epoch_and(2)
    state = old_state(pruner, visited)
    before = {name: str(value) for name, value in state.items()}
    other = infobatch.Pruner(SIZE, EPOCHS, delta=1.0)
    other.load_state_dict(state)
    train(other)
    assert {name: str(value) for name, value in state.items()} == before


@pytest.mark.parametrize("by_index", [False, True])
@pytest.mark.parametrize("stop", [3, 7, 9, 16])
def test_a_state_with_tracks_through_a_file(stop, by_index):
    def new():
        return infobatch.Pruner(SIZE, EPOCHS, delta=1.0, tracks=TRACKS)

    straight, first, second = new(), new(), new()
    expected = train(straight, by_index=by_index)
    visits = train(first, stop=stop, by_index=by_index)
    state = through_a_file(first.state_dict())
    assert set(state["columns"]) >= {"score", "ema", "mean", "visits", "last_visit", "window"}
    second.load_state_dict(state)
    assert visits + train(second, by_index=by_index) == expected
    ours, theirs = second.state_dict(), straight.state_dict()
    for name, column in theirs["columns"].items():
        assert torch.equal(column.nan_to_num(7), ours["columns"][name].nan_to_num(7)), name
        assert column.dtype == ours["columns"][name].dtype


def test_a_state_is_plain_tensors_and_numbers():
    pruner = infobatch.Pruner(SIZE, EPOCHS, delta=1.0, tracks=TRACKS)
    train(pruner, stop=10)

    def plain(value):
        if isinstance(value, dict):
            return all(isinstance(name, str) and plain(inner) for name, inner in value.items())
        if isinstance(value, list):
            return all(map(plain, value))
        return type(value) in (int, float, str, torch.Tensor)

    state = pruner.state_dict()
    assert plain(state)
    assert set(state) == {
        "version",
        "num_samples",
        "shard",
        "seed",
        "epoch",
        "finished",
        "columns",
        "losses",
        "losses_by",
        "plan_check",
        "batch",
        "history",
        "extras",
    }


@pytest.mark.parametrize("version", [0, 3, None, "2"])
def test_an_unknown_version(version):
    pruner, _ = one_epoch_and(0)
    state = {**pruner.state_dict(), "version": version}
    with pytest.raises(
        ValueError,
        match=rf"^load_state_dict\(\) got a state of version {version!r}, expected 2 or 1\. Load it "
        r"with the version of infobatch that saved it\.$",
    ):
        infobatch.Pruner(SIZE, EPOCHS).load_state_dict(state)


def test_something_else_than_a_state():
    with pytest.raises(TypeError, match=r"load_state_dict\(\) got list, expected the dictionary"):
        infobatch.Pruner(SIZE, EPOCHS).load_state_dict([1])


DAMAGED = [
    ("columns", {}, "its scores are missing, expected Tensor"),
    ("columns", [1], "'columns' is list, expected Mapping"),
    (
        "columns",
        {"score": torch.zeros(SIZE, dtype=torch.float64)},
        "column 'score' is torch.float64",
    ),
    ("columns", {"score": torch.zeros(3)}, r"column 'score' is .* \(3,\), expected one row per"),
    (
        "columns",
        {"score": torch.zeros(SIZE), "visits": torch.zeros(SIZE - 1)},
        r"column 'visits' is .* expected one row per sample \(40\)",
    ),
    ("columns", {"score": torch.zeros(SIZE), "visits": None}, "column 'visits' is missing"),
    (
        "columns",
        {"score": torch.zeros(())},
        r"column 'score' is .* shape \(\), expected one row per",
    ),
    ("losses", torch.zeros(SIZE + 1), "'losses' is torch.float32 of shape"),
    ("losses", torch.zeros(2, 2), "'losses' is torch.float32 of shape"),
    ("losses", torch.zeros(3, dtype=torch.int64), "'losses' is torch.int64"),
    ("losses_by", "sample", "'losses_by', 'history' or 'epoch' is not what"),
    ("history", [[1, 2]], "'losses_by', 'history' or 'epoch' is not what"),
    ("epoch", -1, "'losses_by', 'history' or 'epoch' is not what"),
    ("epoch", None, "'epoch' is missing, expected int"),
    ("finished", "0", "'finished' is str, expected int"),
    ("shard", None, "'shard' is missing, expected list"),
]


@pytest.mark.parametrize(("key", "value", "text"), DAMAGED)
def test_a_damaged_state(key, value, text):
    pruner, _ = one_epoch_and(0)
    state = {**pruner.state_dict(), key: value}
    other = infobatch.Pruner(SIZE, EPOCHS)
    with pytest.raises(
        ValueError, match=rf"got a damaged state: {text}.*Use an earlier checkpoint"
    ):
        other.load_state_dict(state)
    assert other.epoch == 0
    assert other.scores.isnan().all(), "nothing of it was taken over"


@pytest.mark.parametrize("missing", ["scores", "share", "losses"])
def test_a_damaged_state_of_version_1(missing):
    pruner, visited = one_epoch_and(2)
    state = old_state(pruner, visited)
    del state[missing]
    with pytest.raises(ValueError, match="got a damaged state"):
        infobatch.Pruner(SIZE, EPOCHS, delta=1.0).load_state_dict(state)


def test_the_state_of_other_data():
    pruner, _ = one_epoch_and(0)
    with pytest.raises(
        ValueError, match=r"a data set with 40 samples, expected 41\. Scores belong"
    ):
        infobatch.Pruner(SIZE + 1, EPOCHS).load_state_dict(pruner.state_dict())


@pytest.mark.parametrize(
    "options", [{"policy": "quantile"}, {"policy": infobatch.MeanPrune(0.3)}, {"delta": 0.1}]
)
def test_other_settings_in_the_middle_of_an_epoch(options):
    pruner, _ = one_epoch_and(2)
    other = infobatch.Pruner(SIZE, EPOCHS, **{"delta": 1.0, **options})
    with pytest.raises(
        ValueError,
        match=r"from the middle of epoch 1, but the plan that it leads to here is not the one that was saved",
    ):
        other.load_state_dict(pruner.state_dict())
    assert other.epoch == 0
