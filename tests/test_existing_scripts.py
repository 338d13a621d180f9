"""A script that was written for the published package runs unchanged."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from infobatch import InfoBatch


class Images(TensorDataset):
    classes = ["cat", "dog"]  # noqa: RUF012 - as torchvision's data sets have it
    transform = "a transform"


@pytest.mark.parametrize("by_keyword", [False, True])
def test_published_usage(by_keyword):
    x = torch.randn(300, 6)
    trainset = Images(x, (x.sum(1) > 0).long())
    num_epoch, ratio, delta = 5, 0.5, 0.875
    if by_keyword:
        trainset = InfoBatch(dataset=trainset, num_epochs=num_epoch, prune_ratio=ratio, delta=delta)
    else:
        trainset = InfoBatch(trainset, num_epoch, ratio, delta)
    trainloader = DataLoader(trainset, batch_size=32, num_workers=0, sampler=trainset.sampler)
    assert trainset.classes == ["cat", "dog"]
    assert trainset.transform == "a transform"
    assert len(trainset) == 300
    net = nn.Linear(6, 2)
    criterion = nn.CrossEntropyLoss(reduction="none")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    counts = []
    for epoch in range(num_epoch):
        trainloader.sampler.set_epoch(epoch)
        total = 0
        for inputs, targets in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(inputs), targets)
            loss = trainset.update(loss)
            loss.backward()
            optimizer.step()
            total += len(targets)
        counts.append(total)
    saved = trainset.get_pruned_count()
    assert saved == 300 * num_epoch - sum(counts)
    assert saved > 0
    assert counts[0] == 300, "the first epoch is whole"
    assert counts[1] < 300
    assert len(trainset.sampler) == 300
