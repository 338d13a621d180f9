"""The shared part of the instruction tuning recipes: a tiny Llama learns to answer questions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import LlamaForCausalLM

from infobatch import PerSample, scoring
from infobatch.lab.recipes.evaluation import batches, only_looking
from infobatch.lab.recipes.stories260k import BOS, EOS, Stories260K

NUM_HELD_OUT = 1000
MAX_LENGTH, MAX_PROMPT = 192, 96
NUM_SMOKE = 64
IGNORED = -100

Sample = tuple[torch.Tensor, torch.Tensor]


class Exchange(NamedTuple):
    """A question and its answer, as texts."""

    question: str
    answer: str


@dataclass
class InstructionTuning(ABC):
    """A pretrained Llama with 260,032 parameters, the loss of only the answer's tokens, AdamW.

    A sample is ``(tokens, labels)``, where the labels of the prompt are −100.

    Options:
        count: train on this many rows, starting from the first; 0 is all of them.
        epochs: how often each is trained on; 0 is the recipe's default.
    """

    folder: Path | None = None
    smoke: bool = False
    count: int = 0
    epochs: int = 0

    batch_size = 32
    learning_rate = 2e-3
    evaluate_every = 3
    metric = "answer loss"
    unit = "nats"
    higher_is_better = False
    margin = 0.02

    def __post_init__(self) -> None:
        for name in ("count", "epochs"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"{name}={getattr(self, name)}, expected an integer >= 0; 0 is the default."
                )
        self.epochs = self.epochs or self.usual_epochs
        self.pretrained = Stories260K(self.folder)
        self.tokenizer = self.pretrained.tokenizer()

    @property
    @abstractmethod
    def usual_epochs(self) -> int:
        """As many as are useful."""

    @abstractmethod
    def exchanges(self) -> tuple[list[Exchange], list[Exchange]]:
        """The exchanges for training, and those held out."""

    @cached_property
    def _encoded(self) -> tuple[list[Sample], list[Sample]]:
        train, held_out = self.exchanges()
        order = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(0))
        test = [held_out[number] for number in order[:NUM_HELD_OUT]]
        if self.count > len(train):
            raise ValueError(
                f"count={self.count} is more than the {len(train):,} rows that there are."
            )
        train = train[: self.count or None]
        if self.smoke:
            train, test = train[:NUM_SMOKE], test[:NUM_SMOKE]
        return [self.encode(row) for row in train], [self.encode(row) for row in test]

    @cached_property
    def _tokens_per_answer(self) -> float:
        train, _ = self._encoded
        return sum(int((labels != IGNORED).sum()) for _, labels in train) / len(train)

    def data(self) -> tuple[Dataset[Any], Dataset[Any]]:
        """The chosen training rows, and 1,000 held-out rows."""
        train, test = self._encoded
        return Answers(train), Answers(test)

    def encode(self, exchange: Exchange) -> Sample:
        """The tokens and labels. A prompt is cut to half the length, an answer to the rest."""
        prompt = self.tokenizer.encode(f"Question: {exchange.question}")[:MAX_PROMPT]
        prompt = [BOS, *prompt, *self.tokenizer.encode("\nAnswer:")]
        answer = [*self.tokenizer.encode(exchange.answer), EOS]
        tokens = torch.tensor([*prompt, *answer][:MAX_LENGTH])
        labels = tokens.clone()
        labels[: len(prompt)] = IGNORED
        return tokens, labels

    def collate(self, samples: list[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
        """Pad to the longest row of the batch. A causal model ignores padding on the right."""
        return (
            pad_sequence([tokens for tokens, _ in samples], True, padding_value=EOS),
            pad_sequence([labels for _, labels in samples], True, padding_value=IGNORED),
        )

    def model(self) -> LlamaForCausalLM:
        """stories260K, pretrained on children's stories."""
        return self.pretrained.model()

    def losses(self, model: nn.Module, batch: Any) -> PerSample:
        """The loss of the answers' tokens; the score is the mean over a row's tokens.

        They are divided by the usual number of tokens rather than this batch's, which pruning
        changes: a row's loss does not depend on the rest of its batch.
        """
        tokens, labels = batch
        samples = scoring.causal_lm(
            model(input_ids=tokens, use_cache=False).logits,
            labels,
            num_items=torch.tensor(len(labels) * self._tokens_per_answer),
        )
        return PerSample(*samples, samples.extras)  # no counts: the divisor is a constant

    def evaluate(self, model: nn.Module, data: Dataset[Any]) -> float:
        """The mean loss of the answers' tokens, in nats."""
        total, count = 0.0, 0
        with only_looking(model) as device:
            for tokens, labels in batches(data, 50, collate_fn=self.collate):
                logits = model(input_ids=tokens.to(device), use_cache=False).logits
                total += float(scoring.token_losses(logits, labels.to(device)).sum())
                count += int((labels != IGNORED).sum())
        return total / count

    def show(self, data: Dataset[Any], index: int) -> str:
        """The question and its answer."""
        return self.tokenizer.decode(data[index][0].tolist())


class Answers(Dataset[Sample]):
    """Encoded rows."""

    def __init__(self, samples: list[Sample]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]
