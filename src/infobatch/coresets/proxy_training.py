"""The training of a proxy: networks, epochs, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from infobatch.coresets.checks import Array, as_labels
from infobatch.coresets.error_norms import error_norms
from infobatch.coresets.head import find_head, watching
from infobatch.coresets.inputs import Cost, History, Inputs
from infobatch.coresets.vectors import last_layer_gradients
from infobatch.files import write_atomically
from infobatch.per_sample import PerSample
from infobatch.wrapper import fetch

_CHUNK = 1000  # samples whose labels are read at once
Losses = Callable[[nn.Module, Any], "torch.Tensor | PerSample"]
Look = Callable[[nn.Module, Dataset[Any]], object]
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Settings:
    """The settings of a proxy: the same settings give the same networks."""

    num_samples: int
    epochs: int
    networks: int
    early_epochs: int
    batch_size: int
    seed: int

    def passes(self) -> int:
        """The number of epochs over all networks."""
        return self.epochs + (self.networks - 1) * self.early_epochs


@dataclass
class Done:
    """The progress so far, as stored in the checkpoint."""

    network: int = 0  # the last one is trained to the end
    epoch: int = 0
    cost: Cost = field(default_factory=Cost)
    error_norms: list[torch.Tensor] = field(default_factory=list)
    gradient_norms: list[torch.Tensor] = field(default_factory=list)
    correct: list[torch.Tensor] = field(default_factory=list)
    label_probabilities: list[torch.Tensor] = field(default_factory=list)


@dataclass
class Training:
    """Trains one network after another, only the last one to the end."""

    make: Callable[[], nn.Module]
    data: Dataset[Any]
    labels: torch.Tensor
    head: str | None
    losses: Losses
    look: Callable[[nn.Module, Dataset[Any]], object]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    schedule: Callable[[torch.optim.Optimizer, int], LRScheduler]
    collate: Callable[[list[Any]], Any] | None
    num_workers: int
    settings: Settings
    checkpoint: Path | None
    progress: Progress

    def run(self, validation: Dataset[Any] | None) -> Inputs:
        """Train the remaining epochs, and evaluate the last network on the data."""
        self.done = Done()
        stored = self._stored()
        self._begin_network(self.done.network, stored)
        while True:
            last = self.done.network + 1 == self.settings.networks
            epochs = self.settings.epochs if last else self.settings.early_epochs
            while self.done.epoch < epochs:
                self._epoch(keep_history=last)
            if last:
                break
            self._begin_network(self.done.network + 1, None)
        return self._outputs(validation)

    def _begin_network(self, number: int, stored: dict[str, Any] | None) -> None:
        torch.manual_seed(self.settings.seed * 1_000_003 + number)
        self.model = self.make()
        find_head(self.model, self.head)  # raises before training
        self.fitted = self.optimizer(self.model)
        steps = len(self._batches(0)) * self.settings.epochs
        self.rates = self.schedule(self.fitted, steps)
        if stored is None:
            self.done.network, self.done.epoch = number, 0
            return
        self.model.load_state_dict(stored["model"])
        self.fitted.load_state_dict(stored["optimizer"])
        self.rates.load_state_dict(stored["schedule"])
        torch.set_rng_state(stored["random"])

    def _batches(self, epoch: int) -> list[list[int]]:
        """The samples of each batch, in an order that depends only on seed, network and epoch."""
        place = (self.settings.seed * 1009 + self.done.network) * 1_000_003 + epoch
        generator = torch.Generator().manual_seed(place)
        order = torch.randperm(self.settings.num_samples, generator=generator)
        parts = [part.tolist() for part in torch.split(order, self.settings.batch_size)]
        if len(parts) > 1 and len(parts[-1]) == 1:  # batch normalisation needs two
            parts[-2:] = [parts[-2] + parts[-1]]
        return parts

    def _epoch(self, *, keep_history: bool) -> None:
        began = (time.perf_counter(), time.process_time())
        settings, batches = self.settings, self._batches(self.done.epoch)
        correct = torch.zeros(settings.num_samples, dtype=torch.bool)
        of_label = torch.zeros(settings.num_samples)
        loader = DataLoader(
            self.data,
            batch_sampler=batches,
            collate_fn=self.collate,
            num_workers=self.num_workers,
            generator=torch.Generator().manual_seed(settings.seed + self.done.epoch),
        )
        self.model.train()
        with watching(self.model, self.head, features=False) as seen:
            for batch in loader:
                result = self.losses(self.model, batch)
                loss = (result.losses if isinstance(result, PerSample) else result).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                self.fitted.step()
                self.fitted.zero_grad()
                self.rates.step()
        order = torch.tensor([row for rows in batches for row in rows])
        logits, labels = seen.logits(len(order)), self.labels[order]
        correct[order] = logits.argmax(1) == labels
        of_label[order] = logits.softmax(1).gather(1, labels[:, None])[:, 0]
        self._charge(began, len(order), len(order))
        if keep_history:
            self.done.correct.append(correct)
            self.done.label_probabilities.append(of_label)
        self.done.epoch += 1
        if self.done.epoch == settings.early_epochs:
            self._note_norms()
        self._save()
        before = self.done.network * settings.early_epochs
        share = (before + self.done.epoch) / settings.passes()
        accuracy = f"{100 * correct.float().mean():.1f}% of training samples correct"
        network = (
            f"network {self.done.network + 1}/{settings.networks}, "
            if settings.networks > 1
            else ""
        )
        self.progress(share, f"proxy: {network}epoch {self.done.epoch}, {accuracy}")

    def _charge(self, began: tuple[float, float], forwarded: int, backpropagated: int) -> None:
        seconds, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
        self.done.cost += Cost(seconds, forwarded, backpropagated, cpu)

    def _note_norms(self) -> None:
        features, logits = self._look_at(self.data)
        outputs = logits.softmax(1)
        gradients = last_layer_gradients(features, outputs, self.labels)
        self.done.error_norms.append(error_norms(outputs, self.labels))
        self.done.gradient_norms.append(gradients.squared_norms().sqrt())

    def _look_at(self, data: Dataset[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        began = (time.perf_counter(), time.process_time())
        count: int = len(data)  # type: ignore[arg-type]
        self.model.eval()
        with torch.no_grad(), watching(self.model, self.head, features=True) as seen:
            self.look(self.model, data)
        self._charge(began, count, 0)
        return seen.features(count), seen.logits(count)

    def _outputs(self, validation: Dataset[Any] | None) -> Inputs:
        features, logits = self._look_at(self.data)
        held_out = None
        if validation is not None:
            held_features, held_logits = self._look_at(validation)
            held_out = Inputs(
                features=held_features, logits=held_logits, labels=labels_of(validation, None)
            )
        done = self.done
        return Inputs(
            features=features,
            logits=logits,
            labels=self.labels,
            error_norms=torch.stack(done.error_norms),
            gradient_norms=torch.stack(done.gradient_norms),
            history=History(torch.stack(done.correct), torch.stack(done.label_probabilities)),
            validation=held_out,
            model=self.model,
            data=self.data,
            cost=done.cost,
        )

    # Checkpoints.

    def _save(self) -> None:
        if self.checkpoint is None:
            return
        state = {
            "settings": asdict(self.settings),
            "done": asdict(self.done),
            "model": self.model.state_dict(),
            "optimizer": self.fitted.state_dict(),
            "schedule": self.rates.state_dict(),
            "random": torch.get_rng_state(),
        }
        write_atomically(self.checkpoint, lambda path: torch.save(state, path))

    def _stored(self) -> dict[str, Any] | None:
        if self.checkpoint is None or not self.checkpoint.exists():
            return None
        state: dict[str, Any] = torch.load(self.checkpoint, weights_only=True)
        if state["settings"] != asdict(self.settings):
            raise ValueError(
                f"proxy(checkpoint={str(self.checkpoint)!r}) holds a proxy with different settings: "
                f"{state['settings']}, here {asdict(self.settings)}. Choose another path, or delete it."
            )
        done = state["done"]
        self.done = Done(**{**done, "cost": Cost(**done["cost"])})
        return state


def labels_of(data: Dataset[Any], labels: Array) -> torch.Tensor:
    """One class per sample: as given, or the second entry of each sample."""
    count: int = len(data)  # type: ignore[arg-type]
    if labels is not None:
        return as_labels("proxy()", labels, count=count).cpu()
    result: list[Any] = []
    for start in range(0, count, _CHUNK):
        samples = fetch(data, range(start, min(start + _CHUNK, count)))
        result += [sample[1] for sample in samples]
    return as_labels("proxy()", torch.as_tensor(result), count=count)
