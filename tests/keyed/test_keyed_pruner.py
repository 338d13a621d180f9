"""KeyedPruner: the loop, the rules, what it counts, and how wrong use is told."""

import copy
import gc
import pickle
import re

import numpy as np
import pytest
import torch
from torch import nn

import infobatch
from infobatch.keyed.chance import hash_keys, random_bits
from infobatch.policies import POLICIES
from infobatch.tracks import Visits
from keyed_runs import KEYS, batches, loss_of, losses_of, train_epoch, trained


def uniform(keys, seed, epoch):
    return (random_bits(hash_keys(keys), seed=seed, epoch=epoch) >> np.uint64(11)) * 2.0**-53


def test_the_mean_rule_as_plain_loops():
    """Every decision, weight and score of five epochs, written a second time with dictionaries."""
    pruner = infobatch.KeyedPruner(5, 0.6, 1.0, seed=3)
    scores = {}
    for epoch in range(5):
        mean = (
            float(np.mean(np.array(list(scores.values()), np.float32), dtype=np.float64))
            if scores
            else 0
        )
        numbers = dict(zip(KEYS, uniform(KEYS, 3, epoch), strict=True))
        below = {key for key in scores if scores[key] < np.float32(mean)}
        expected = [key for key in KEYS if key not in below or numbers[key] < 0.4]
        kept, means = train_epoch(pruner, epoch)
        assert kept == expected
        if epoch:
            assert pruner.epoch_length == len(kept) < len(KEYS)
        for batch, loss in zip(batches(kept), means, strict=True):
            weights = torch.tensor([1 / 0.4 if key in below else 1.0 for key in batch])
            assert loss == pytest.approx(
                (weights * losses_of(batch, epoch)).mean().item(), rel=1e-6
            )
        scores |= {key: np.float32(loss_of(key, epoch)) for key in kept}
    pruner.set_epoch(5)
    assert pruner.scores(KEYS).tolist() == [scores[key] for key in KEYS]


@pytest.mark.parametrize("kind", [str, bytes, int, "tensor", "array"])
def test_kinds_of_keys(kind):
    convert = {
        str: lambda n: f"k{n}",
        bytes: lambda n: b"%d" % n,
        int: int,
        "tensor": int,
        "array": int,
    }[kind]
    collate = {"tensor": torch.tensor, "array": np.array}.get(kind, list)
    pruner = infobatch.KeyedPruner(3, delta=1.0)
    for epoch in range(3):
        pruner.set_epoch(epoch)
        kept = [n for n in range(100) if pruner.keeps(convert(n))]
        for batch in batches(kept):
            pruner.update(losses_of(batch, 0), key=collate([convert(n) for n in batch]))
    assert pruner.num_keys == 100
    assert len(kept) == pruner.epoch_length < 90
    assert torch.equal(pruner.scores([convert(3)]), losses_of([3], 0))
    assert pruner.scores([convert(500)]).isnan().all()


def test_gradients_and_dtypes():
    pruner, _ = trained(1)
    pruner.set_epoch(1)
    kept = list(filter(pruner.keeps, KEYS))[:8]
    weights = pruner.weights(kept)
    assert weights.dtype is torch.float64
    assert set(weights.tolist()) == {1.0, 2.0}
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        losses = torch.rand(8, dtype=dtype).requires_grad_()
        before = losses.detach().clone()
        loss = pruner.update(losses, key=kept)
        loss.backward()
        assert loss.dtype is dtype
        assert torch.equal(losses.detach(), before)
        assert torch.allclose(losses.grad.double(), weights / 8, rtol=1e-2)


def test_expected_gradient_is_that_of_all_data():
    """Over all seeds of a range, by a z-test, through the whole loop."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    inputs = {key: torch.randn(3) for key in KEYS}
    full = torch.stack([inputs[key] for key in KEYS]).sum(0)  # the gradient of a sum of outputs
    errors = []
    for seed in range(100):
        pruner = infobatch.KeyedPruner(3, 0.7, 1.0, seed=seed)
        train_epoch(pruner, 0)
        pruner.set_epoch(1)
        total = torch.zeros(3)
        for batch in batches(list(filter(pruner.keeps, KEYS))):
            model.zero_grad()
            outputs = model(torch.stack([inputs[key] for key in batch])).squeeze(1)
            (pruner.update(outputs, key=batch) * len(batch)).backward()
            total += model.weight.grad[0]
        errors.append(total - full)
    errors = torch.stack(errors)
    z = errors.mean(0) / errors.std(0) * 10
    assert z.abs().max() < 4


def needs_more(name):
    return POLICIES[name].needs_labels or POLICIES[name].refreshes


def extras_of(pruner, keys):
    return {name: losses_of(keys, 0) / 4 for name in pruner._planner.channels}


@pytest.mark.filterwarnings("ignore::infobatch.BiasedPolicyWarning")
@pytest.mark.parametrize("name", [name for name in POLICIES if not needs_more(name)])
def test_every_rule_that_goes_by_scores(name):
    """It prunes by what it remembers, and its savings are those of the passes."""
    pruner = infobatch.KeyedPruner(30, policy=name, delta=1.0)
    keys = [f"{number}" for number in range(600)]
    made = 0
    for epoch in range(pruner.policy.first_epoch + 3):
        pruner.set_epoch(epoch)
        kept = list(filter(pruner.keeps, keys))
        made += len(kept)
        pruner.update(losses_of(kept, epoch), key=kept, extras=extras_of(pruner, kept))
    assert pruner.savings.made == made
    assert (len(kept) < 600) == (name != "none")
    assert len(kept) > 100
    weights = pruner.weights(kept)
    if name in ("mean", "quantile", "random", "auto", "noise", "importance"):
        keep = 1 / weights
        error = float((1 / keep**2 - 1 / keep).sum().sqrt())  # of Σ w, estimated from what was kept
        assert abs(float(weights.sum()) - 600) < 4 * error + 1e-9


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("rcap", "the class of each sample (labels) before training"),
        ("ies", "a forward pass, refresh(), over the samples that an epoch leaves out"),
        ("kakurenbo", "a forward pass, refresh(), over the samples that an epoch leaves out"),
    ],
)
def test_rules_that_need_more_say_so(name, what):
    expected = (
        rf"^KeyedPruner got policy=\w+\(.*\), which needs {re.escape(what)}\. Streamed data has no"
    )
    with pytest.raises(ValueError, match=expected):
        infobatch.KeyedPruner(3, policy=name)
    assert {name for name in POLICIES if needs_more(name)} == {"rcap", "ies", "kakurenbo"}


def test_smoothing_and_tracks():
    policy = infobatch.MeanPrune(smoothing=0.5)
    pruner, visits = trained(3, policy=policy, tracks=[Visits()])
    pruner.set_epoch(3)
    for key in KEYS[:20]:
        average = None
        for epoch, (kept, _) in enumerate(visits):
            if key in kept:
                new = loss_of(key, epoch)
                average = new if average is None else 0.5 * average + 0.5 * new
        row = pruner._memory.hashes.searchsorted(hash_keys([key])[0])
        columns = pruner._memory.rows.columns
        assert columns["ema"][row] == pytest.approx(average, rel=1e-5)
        assert columns["visits"][row] == sum(key in kept for kept, _ in visits)


def test_a_budget_is_met():
    keys = list(range(4000))
    pruner, _ = trained(10, keys, save=0.3)
    assert pruner.savings.fraction == pytest.approx(0.3, abs=0.01)


def test_max_noise_limits_what_is_added():
    plain, _ = trained(4, list(range(4000)), policy=infobatch.RandomPrune(0.5))
    limited, _ = trained(4, list(range(4000)), policy=infobatch.RandomPrune(0.5), max_noise=0.1)
    assert plain.savings.epochs[-1].added_noise == pytest.approx(1.0, rel=0.1)
    assert limited.savings.epochs[-1].added_noise <= 0.1 + 1e-6
    assert limited.savings.saved < plain.savings.saved


def test_warmup_and_delta():
    pruner = infobatch.KeyedPruner(6, delta=0.5, warmup=2)
    lengths = [len(train_epoch(pruner, epoch)[0]) for epoch in range(6)]
    assert [length < len(KEYS) for length in lengths] == [False, False, True, False, False, False]
    assert pruner.savings.epochs[-1].kept_fraction == 1


def test_new_keys_are_kept_with_weight_1():
    pruner, _ = trained(2)
    new = [f"new/{number}" for number in range(50)]
    pruner.set_epoch(2)
    assert all(map(pruner.keeps, new))
    assert pruner.weights(new).tolist() == [1.0] * 50
    kept = list(filter(pruner.keeps, KEYS)) + new
    pruner.update(losses_of(kept, 2), key=kept)
    pruner.set_epoch(3)
    assert pruner.num_keys == len(KEYS) + 50
    last = pruner.savings.epochs[-1]
    assert (last.full, last.planned, last.made) == (250, len(kept), len(kept))


def test_a_sample_without_a_finite_loss_keeps_its_score():
    pruner, _ = trained(1)
    pruner.set_epoch(1)
    kept = list(filter(pruner.keeps, KEYS))
    losses = losses_of(kept, 1)
    losses[3], losses[5] = torch.nan, torch.inf
    before = pruner.scores(kept[:6])
    pruner.update(losses, key=kept)
    pruner.set_epoch(2)
    after = pruner.scores(kept[:6])
    assert after[3] == before[3]
    assert after[5] == before[5]
    assert after[4] == losses[4] != before[4]
    assert pruner.savings.unscored == 2


def test_an_epoch_without_any_score():
    pruner, _ = trained(1)
    pruner.set_epoch(1)
    kept = list(filter(pruner.keeps, KEYS))
    pruner.update(torch.full((len(kept),), torch.nan), key=kept)
    with pytest.warns(UserWarning, match=r"^None of the \d+ samples of epoch 1 got a score"):
        pruner.set_epoch(2)


def test_scores_instead_of_losses():
    pruner = infobatch.KeyedPruner(3, delta=1.0)
    pruner.update(torch.zeros(200), torch.arange(200.0), key=KEYS)
    pruner.set_epoch(1)
    assert pruner.scores(KEYS).tolist() == list(range(200))
    per_sample = infobatch.PerSample(torch.ones(1), torch.tensor([7.0]))
    assert pruner.keeps(KEYS[-1])
    assert pruner.update(per_sample, key=KEYS[-1:]) == 1
    pruner.set_epoch(2)
    assert pruner.scores(KEYS[-1:]).tolist() == [7.0]


def test_savings_while_an_epoch_is_running():
    pruner, _ = trained(1)
    assert pruner.savings.made == len(KEYS)
    assert pruner.epoch_length is None, "nothing is known before the first epoch has ended"
    pruner.set_epoch(1)
    assert pruner.epoch_length < len(KEYS)
    kept = list(filter(pruner.keeps, KEYS))
    pruner.update(losses_of(kept[:10], 1), key=kept[:10])
    assert pruner.savings.made == len(KEYS) + 10
    assert pruner.savings.epochs[-1].planned == pruner.epoch_length == len(kept)


def test_the_first_pass_needs_no_set_epoch_and_it_is_idempotent():
    pruner = infobatch.KeyedPruner(3)
    pruner.update(losses_of(KEYS, 0), key=KEYS)
    pruner.set_epoch(1)
    table = pruner._board.table
    pruner.set_epoch(1)
    assert pruner._board.table is table


# Wrong use.


def test_an_epoch_before_the_running_one():
    pruner, _ = trained(2)
    with pytest.raises(
        ValueError, match=r"^set_epoch\(0\) was called in epoch 1, expected that one or"
    ):
        pruner.set_epoch(0)


def passes_without_set_epoch(pruner, keys):
    for _ in range(2):
        for batch in batches(keys):
            assert all(map(pruner.keeps, batch))
            pruner.update(losses_of(batch, 0), key=batch)


@pytest.mark.parametrize("keys", [KEYS, KEYS * 10])
def test_without_set_epoch_the_second_pass_raises(keys):
    message = (
        r"^update\(\) got [\d,]+ keys in epoch 0, but only 200 different ones\. Call set_epoch"
    )
    with pytest.raises(RuntimeError, match=message):
        passes_without_set_epoch(infobatch.KeyedPruner(3), keys)


def test_a_few_repeated_keys_are_counted_and_warned_about():
    pruner = infobatch.KeyedPruner(3)
    keys = KEYS + KEYS[:10]
    for batch in batches(keys):
        pruner.update(losses_of(batch, 0), key=batch)
    with pytest.warns(
        UserWarning, match=r"^10 times a key came again within epoch 0, which visited 200 d"
    ):
        pruner.set_epoch(1)
    assert pruner.repeated == 10
    assert pruner.num_keys == 200


def test_keys_that_change():
    pruner, _ = trained(1)
    train_epoch(pruner, 1, [f"other/{number}" for number in range(30)])
    with pytest.warns(
        UserWarning, match=r"^None of the 30 keys of epoch 1 is among the 200 that were"
    ):
        pruner.set_epoch(2)


def test_samples_that_were_not_asked_for():
    """The pipeline forgot keeps(): told by the first batch of the first epoch with known keys."""
    pruner, _ = trained(1)
    pruner.set_epoch(1)
    kept = [key for key, number in zip(KEYS, uniform(KEYS, 0, 1), strict=True) if number < 0.5]
    with pytest.raises(
        RuntimeError, match=r"^16 of a batch's 16 samples were not chosen for epoch 1, such"
    ):
        pruner.update(losses_of(kept[:16], 1), key=kept[:16])


@pytest.mark.parametrize("delta", [1.0, 0.2])
def test_samples_of_an_earlier_epoch_raise(delta):
    """A loader that read ahead: its samples have the weights of the decision that was made.

    With ``delta=0.2`` of ten epochs the next one is whole, where every weight would be 1.
    """
    pruner = infobatch.KeyedPruner(10, delta=delta)
    train_epoch(pruner, 0)
    pruner.set_epoch(1)
    read_ahead = list(filter(pruner.keeps, KEYS))
    assert len(read_ahead) < len(KEYS)
    pruner.set_epoch(2)
    with pytest.raises(
        RuntimeError, match=r"not chosen for epoch 2.*call set_epoch\(\) before the loader"
    ):
        pruner.update(losses_of(read_ahead[:16], 1), key=read_ahead[:16])
    with pytest.raises(RuntimeError, match="not chosen for epoch 2"):
        pruner.weights(read_ahead[:16])


@pytest.mark.parametrize("sample", [{"jpg": b"", "cls": 1}, {"id": "a"}])
def test_a_sample_without_a_key(sample):
    pruner = infobatch.KeyedPruner(3)
    with pytest.raises(KeyError, match=r"keeps\(\) got a sample without '__key__'; it has \['"):
        pruner.keeps(sample)


def test_a_key_of_another_type():
    pruner = infobatch.KeyedPruner(3, key="id")
    for sample in ({"id": 1.5}, None, {"id": None}):
        with pytest.raises(
            TypeError, match=r"keeps\(\) got a key of type \w+, expected a string, bytes"
        ):
            pruner.keeps(sample)
    for keys in (None, "abc", torch.rand(3), [1.5, 2, 3]):
        with pytest.raises(
            TypeError, match=r"^update\(key=…\) got .*, expected the batch's keys: a list"
        ):
            pruner.update(torch.rand(3), key=keys)
    with pytest.raises(
        ValueError, match=r"^update\(key=…\) got 2 keys, expected one for each of the 3"
    ):
        pruner.update(torch.rand(3), key=["a", "b"])
    with pytest.raises(ValueError, match=r"^update\(\) got a scalar, expected one loss per sample"):
        pruner.update(torch.rand(3).mean(), key=["a"])


@pytest.mark.parametrize("image", [np.zeros((2, 2, 3)), torch.zeros(3, 2, 2)])
def test_keeps_after_decoding_is_told_in_the_training_process(image):
    pruner = infobatch.KeyedPruner(3)
    pruner.keeps({"__key__": "a", "jpg": image, "cls": 3})
    with pytest.warns(
        UserWarning, match=r"^KeyedPruner.keeps\(\) got samples that had been decoded"
    ):
        pruner.update(torch.rand(1), key=["a"])
    pruner.update(torch.rand(1), key=["b"])  # once


def test_encoded_samples_do_not_warn():
    pruner = infobatch.KeyedPruner(3)
    pruner.keeps({"__key__": "a", "jpg": b"...", "cls": b"3", "tokens": np.zeros(5), "n": 3})
    pruner.update(torch.rand(1), key=["a"])


def test_the_pruner_itself_is_not_sent_to_workers():
    pruner, _ = trained(1)
    for send in (pickle.dumps, copy.deepcopy):
        with pytest.raises(
            TypeError, match=r"cannot be pickled or copied.*Give the data set pruner.keeps"
        ):
            send(pruner)


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pruner, _ = trained(3)
    assert len(list(tmp_path.iterdir())) == 1
    del pruner
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_memory_per_key():
    """About twenty bytes per key with a moving average, what workers share included."""
    keys = torch.arange(100_000)
    pruner = infobatch.KeyedPruner(3, policy="auto")
    pruner.update(torch.rand(100_000), key=keys)
    pruner.set_epoch(1)
    shared = sum(path.stat().st_size for path in pruner._board.folder.iterdir())
    assert pruner._memory.hashes is pruner._board.table.hashes, "one copy"
    columns = sum(column.nbytes for column in pruner._memory.rows.columns.values())
    assert (shared + columns) / 100_000 < 20
