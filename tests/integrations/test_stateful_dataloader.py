"""torchdata's StatefulDataLoader: the state is the data set's, and the loader's own does no harm."""

import copy

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import infobatch
from numbered import Numbered, loss_of

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
SIZE, BATCH, EPOCHS = 61, 8, 4


def parts(workers=0, **options):
    train_data = infobatch.InfoBatch(Numbered(SIZE), EPOCHS, delta=1.0, seed=2)
    if options.pop("batch_sampler", False):
        options["batch_sampler"] = train_data.batch_sampler(BATCH)
    else:
        options |= {"batch_size": BATCH, "sampler": train_data.sampler}
    return train_data, StatefulDataLoader(train_data, num_workers=workers, **options)


def run(train_data, loader, states=None, epochs=EPOCHS):
    """Train to the end; note what each step saw, and the states after it."""
    steps = []
    for epoch in range(train_data.epoch, epochs):
        for x, _ in loader:
            loss = train_data.update(loss_of(x, epoch))
            steps.append((epoch, x.tolist(), loss.item()))
            if states is not None:
                states.append(saved(train_data, loader))
    return steps


def saved(train_data, loader):
    return {"data": train_data.state_dict(), "loader": copy.deepcopy(loader.state_dict())}


LOADS = {
    "both": lambda state, data, loader: (
        data.load_state_dict(state["data"]),
        loader.load_state_dict(state["loader"]),
    ),
    "loader's first": lambda state, data, loader: (
        loader.load_state_dict(state["loader"]),
        data.load_state_dict(state["data"]),
    ),
    "data's alone": lambda state, data, loader: data.load_state_dict(state["data"]),
    "loader's alone": lambda state, data, loader: loader.load_state_dict(state["loader"]),
}


@pytest.mark.parametrize("load", ["both", "loader's first", "data's alone"])
@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (0, {}),
        (0, {"batch_sampler": True}),
        (0, {"drop_last": True}),
        (2, {}),
        (2, {"batch_sampler": True}),
        (2, {"persistent_workers": True}),
    ],
)
def test_exact_resume(load, workers, options):
    states = []
    train_data, loader = parts(workers, **options)
    whole = run(train_data, loader, states)
    assert train_data.savings.saved > 0
    for step in range(1, len(states) - 1, 1 if workers == 0 else 5):
        again, its_loader = parts(workers, **options)
        LOADS[load](states[step], again, its_loader)
        assert run(again, its_loader) == whole[step + 1 :], step
        assert torch.equal(again.scores, train_data.scores)
        assert again.savings == train_data.savings


def test_resume_twice():
    whole = run(*parts())
    state, done = None, 0
    while done < len(whole):
        train_data, loader = parts()
        if state is not None:
            LOADS["both"](state, train_data, loader)
        for epoch in range(train_data.epoch, EPOCHS):
            for made, (x, _) in enumerate(loader, 1):
                loss = train_data.update(loss_of(x, epoch))
                assert (epoch, x.tolist(), loss.item()) == whole[done]
                done += 1
                if made == 3:
                    break
            break
        state = saved(train_data, loader)


def test_between_epochs_and_before_the_first():
    whole = run(*parts())
    for epochs in range(EPOCHS):
        train_data, loader = parts(2)
        run(train_data, loader, epochs=epochs)
        state = saved(train_data, loader)
        again, its_loader = parts(2)
        LOADS["both"](state, again, its_loader)
        assert run(again, its_loader) == [step for step in whole if step[0] >= epochs]


def test_the_loaders_state_alone():
    """Without workers the loader saves its data set's state as well; with workers it cannot."""
    for workers in (0, 2):
        states = []
        train_data, loader = parts(workers)
        whole = run(train_data, loader, states)
        again, its_loader = parts(workers)
        LOADS["loader's alone"](states[9], again, its_loader)
        if workers == 0:
            iter(its_loader)  # loads it
            LOADS["loader's alone"](states[9], again, its_loader)
            assert run(again, its_loader) == whole[10:]
        else:
            with pytest.raises(
                RuntimeError, match=r"train_data's was not loaded\. Save train_data"
            ):
                next(iter(its_loader))


def test_states_of_different_steps():
    states = []
    run(*parts(2), states)
    again, its_loader = parts(2)
    again.load_state_dict(states[3]["data"])
    its_loader.load_state_dict(states[5]["loader"])
    text = (
        r"state was saved after 48 samples of epoch 0, but train_data's was saved after 32 samples"
    )
    with pytest.raises(RuntimeError, match=text):
        next(iter(its_loader))
    states = []
    run(*parts(2, snapshot_every_n_steps=4), states, epochs=1)
    again, its_loader = parts(2, snapshot_every_n_steps=4)
    LOADS["both"](states[5], again, its_loader)
    with pytest.raises(RuntimeError, match="snapshot_every_n_steps=1"):
        next(iter(its_loader))


def test_workers_do_not_send_the_scores():
    """A stateful loader asks its workers for the data set's state at every batch."""
    train_data, loader = parts(2, multiprocessing_context="fork")
    for x, _ in loader:
        train_data.update(loss_of(x, 0))
        workers = loader.state_dict()["_snapshot"]["_worker_snapshots"]
        assert all(state["dataset_state"] == {} for state in workers.values())
