"""The checkpoint's format, and what is wrong with states that raise an error."""

import io

import pytest
import torch

import infobatch
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


def one_epoch_and(batches, by_index=False):
    """A pruner after its first epoch and some batches of the second, and the samples of these."""
    pruner = infobatch.Pruner(SIZE, EPOCHS, delta=1.0)
    train(pruner, until=1, by_index=by_index)
    pruner.set_epoch(1)
    visits = train(pruner, stop=batches, by_index=by_index) if batches else []
    return pruner, [sample for batch in visits for sample in batch]


def early_loss(sample, epoch):
    return (sample * 7919 + epoch * 104729) % 1000 / 100


def test_what_an_early_version_drew_is_drawn_again():
    """Written after 12 samples of epoch 1 when orders were last changed (18 November 2026)."""
    losses = [4.86, 5.42, 2.43, 8.13, 0.28, 4.33, 3.52, 7.29, 8.38, 1.09, 7.04, 9.47]
    passes = {"epoch": 0, "full": 40, "planned": 40, "made": 40, "unscored": 0, "thresholds": []}
    passes |= {"added_noise": 0.0, "refreshed": 0, "refreshed_cost": 0.0}
    state = {
        "version": 2,
        "num_samples": 40,
        "shard": [0, 1],
        "seed": 5,
        "epoch": 1,
        "finished": 0,
        "columns": {"score": torch.tensor([early_loss(sample, 0) for sample in range(40)])},
        "losses": torch.tensor(losses),
        "extras": {},
        "losses_by": "position",
        "plan_check": 3124772343,
        "batch": 6,
        "history": [passes],
        "shadows": {},
    }
    before = {name: str(value) for name, value in state.items()}
    pruner = infobatch.Pruner(40, 6, delta=1.0)
    pruner.load_state_dict(state)
    visited, rest = pruner.plan.order[:12].tolist(), pruner.plan.order[12:].tolist()
    assert [early_loss(sample, 1) for sample in visited] == losses
    assert list(pruner.sampler) == rest
    for sample in visited:
        assert pruner.scores[sample].item() == pytest.approx(early_loss(sample, 1))
    train(pruner)
    assert {name: str(value) for name, value in state.items()} == before, "it is only read"


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
        "shadows",
        "extras",
    }


@pytest.mark.parametrize("version", [0, 1, 3, None, "2"])
def test_an_unknown_version(version):
    pruner, _ = one_epoch_and(0)
    state = {**pruner.state_dict(), "version": version}
    with pytest.raises(
        ValueError,
        match=rf"^load_state_dict\(\) got a state of version {version!r}, expected 2\. Load it "
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
