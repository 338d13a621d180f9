"""Where a resumed run repeats the draws of one that was not stopped: docs/checkpoints.md."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import infobatch

SIZE, EPOCHS, BATCH = 60, 3, 8


class Noisy(Dataset):
    """Samples of which each reading draws noise, if asked to."""

    def __init__(self, noise):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(SIZE, 4, generator=generator)
        self.noise = noise

    def __len__(self):
        return SIZE

    def __getitem__(self, sample):
        x = self.x[sample]
        return (x + self.noise * torch.randn(4) if self.noise else x), x.sum()


class Training:
    def __init__(self, *, noise, workers):
        torch.manual_seed(1)
        self.data = infobatch.InfoBatch(Noisy(noise), EPOCHS, delta=1.0)
        self.loader = DataLoader(
            self.data,
            BATCH,
            sampler=self.data.sampler,
            num_workers=workers,
            generator=torch.Generator(),
        )
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.losses = []

    def run(self, stop=None):
        for _ in range(self.data.epoch, EPOCHS):
            for x, y in self.loader:
                loss = self.data.update((self.model(x).squeeze(1) - y) ** 2)
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.losses.append(loss.item())
                if len(self.losses) == stop:
                    return [part.state_dict() for part in self.parts], torch.get_rng_state()
        return None

    @property
    def parts(self):
        return self.data, self.model, self.optimizer

    def resume(self, states, random):
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)
        torch.set_rng_state(random)


@pytest.mark.parametrize(("noise", "workers"), [(0, 0), (1, 0), (0, 2)])
def test_dropout_and_transforms_continue(noise, workers):
    straight = Training(noise=noise, workers=workers)
    straight.run()
    for stop in (3, 8, 11):
        first = Training(noise=noise, workers=workers)
        states, random = first.run(stop)
        second = Training(noise=noise, workers=workers)
        second.resume(states, random)
        second.run()
        assert first.losses + second.losses == straight.losses
