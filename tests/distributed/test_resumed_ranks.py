"""Several ranks that stop after any step and continue: the same batches, repeats included."""

import pytest
import torch

from rank_threads import on_ranks

SIZE, EPOCHS, RANKS = 43, 3, 3


def loss_of(samples, epoch):
    """Easy on the first ranks' shards and hard on the last one's, so shards keep different numbers."""
    return samples % RANKS + samples * 0.01 + epoch * 0.001


def train(pruner, rank, *, shrink, drop_last, by_index=False, states=None, resume_from=None):
    """Train to the end; return the batches with their means, and what is known at the end."""
    if resume_from is not None:
        pruner.load_state_dict(resume_from[rank])
    batches = pruner.batch_sampler(3, drop_last=drop_last, shrink=shrink)
    made = []
    for epoch in range(pruner.epoch, EPOCHS):
        for batch in batches:
            index = torch.tensor(batch)
            losses = loss_of(index.float(), epoch)
            loss = pruner.update(losses, index=index if by_index else None)
            made.append((epoch, batch, loss.item()))
            if states is not None:
                states[rank].append(pruner.state_dict())
    return made, pruner.scores.tolist(), pruner.savings


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shrink", ["epoch", "batch"])
def test_stop_after_any_step(shrink, drop_last, sharded):
    arguments = (SIZE, EPOCHS)
    options = {"delta": 1.0, "sharded": sharded}

    def run(**more):
        def work(pruner, rank):
            return train(pruner, rank, shrink=shrink, drop_last=drop_last, **more)

        return on_ranks(RANKS, work, *arguments, **options)

    states = [[] for _ in range(RANKS)]
    straight = run(states=states)
    for step, resume_from in enumerate(zip(*states, strict=True), 1):
        for rank, (made, scores, savings) in enumerate(run(resume_from=resume_from)):
            expected = straight[rank]
            assert made == expected[0][step:], f"rank {rank} after step {step}"
            assert (scores, savings) == expected[1:]


def without_repeats(made):
    """Which batches have only samples that the epoch had not had before."""
    seen, fresh = set(), []
    for epoch, batch, _ in made:
        samples = {(epoch, sample) for sample in batch}
        fresh.append(not samples & seen and len(samples) == len(batch))
        seen |= samples
    assert fresh.count(False) <= EPOCHS
    return fresh


@pytest.mark.parametrize("shrink", ["epoch", "batch"])
def test_stop_after_any_step_with_the_index_in_the_batch(shrink):
    """There a repeat counts like a sample, also one that was visited before the resume."""

    def run(**more):
        def work(pruner, rank):
            return train(pruner, rank, shrink=shrink, drop_last=False, by_index=True, **more)

        return on_ranks(RANKS, work, SIZE, EPOCHS, delta=1.0)

    states = [[] for _ in range(RANKS)]
    straight = run(states=states)
    for step, resume_from in enumerate(zip(*states, strict=True), 1):
        for rank, (made, scores, savings) in enumerate(run(resume_from=resume_from)):
            expected = straight[rank][0][step:]
            assert [batch for _, batch, _ in made] == [batch for _, batch, _ in expected]
            exact = without_repeats(straight[rank][0])[step:]
            for after_resume, before, same in zip(made, expected, exact, strict=True):
                assert after_resume == before or not same
            assert (scores, savings) == straight[rank][1:]
