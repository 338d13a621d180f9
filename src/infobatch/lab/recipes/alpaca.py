"""Instruction tuning: the pretrained Llama of 260,032 parameters on Stanford Alpaca.

The 9,229 rows of ``random_9k`` for 4 epochs, rows cut to 192 tokens: minutes on two cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import LlamaForCausalLM

from infobatch import PerSample, scoring
from infobatch.lab.datasets.readers import Alpaca
from infobatch.lab.options import one_of
from infobatch.lab.recipes.evaluation import batches, only_looking
from infobatch.lab.recipes.stories260k import BOS, EOS, Stories260K

EPOCHS = {"random_9k": 4, "dq_k5_1k": 5}  # longer, and the small selection is learned by heart
HELD_OUT_FROM, NUM_HELD_OUT = ("random_5k", "random_1k"), 1000
MAX_LENGTH, MAX_PROMPT = 192, 96
NUM_SMOKE = 64
IGNORED = -100

Sample = tuple[torch.Tensor, torch.Tensor]


@dataclass
class Recipe:
    """The loss of the answer's tokens alone, AdamW; option ``rows``.

    A sample is ``(tokens, labels)``, where the labels of the prompt are −100.

    Options:
        rows: ``random_9k``, an unbiased sample of Alpaca, or ``dq_k5_1k``, the 1,000 rows that Dataset
            Quantization selects: the paper's Table 9, pruning on top of a static selection.
    """

    folder: Path | None = None
    smoke: bool = False
    rows: str = "random_9k"

    batch_size = 32
    learning_rate = 2e-3
    evaluate_every = 2
    metric = "answer loss"
    unit = "nats"
    higher_is_better = False
    margin = 0.02

    def __post_init__(self) -> None:
        one_of("rows", self.rows, tuple(EPOCHS))
        self.source = Alpaca(self.folder)
        self.pretrained = Stories260K(self.folder)
        self.tokenizer = self.pretrained.tokenizer()

    @property
    def epochs(self) -> int:
        """As many as help."""
        return EPOCHS[self.rows]

    def data(self) -> tuple[Dataset[Any], Dataset[Any]]:
        """The chosen rows to train; to test 1,000 of a random sample that no choice of rows has."""
        rows = self.source.rows()
        train = [row for row in rows if self.rows in row["src"]]
        unseen = [
            row
            for row in rows
            if not set(row["src"]) & set(EPOCHS) and set(row["src"]) & set(HELD_OUT_FROM)
        ]
        order = torch.randperm(len(unseen), generator=torch.Generator().manual_seed(0))
        test = [unseen[number] for number in order[:NUM_HELD_OUT]]
        if self.smoke:
            train, test = train[:NUM_SMOKE], test[:NUM_SMOKE]
        return Answers([self.encode(row) for row in train]), Answers(
            [self.encode(row) for row in test]
        )

    def encode(self, row: dict[str, Any]) -> Sample:
        """A row's tokens and labels. A prompt is cut to half of the length, an answer to what is left."""
        question = " ".join([row["instruction"], row["input"]]).strip()
        prompt = self.tokenizer.encode(f"Question: {question}")[:MAX_PROMPT]
        prompt = [BOS, *prompt, *self.tokenizer.encode("\nAnswer:")]
        answer = [*self.tokenizer.encode(row["output"]), EOS]
        tokens = torch.tensor([*prompt, *answer][:MAX_LENGTH])
        labels = tokens.clone()
        labels[: len(prompt)] = IGNORED
        return tokens, labels

    def collate(self, samples: list[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
        """Pad to the batch's longest. A causal model does not look at padding on the right."""
        return (
            pad_sequence([tokens for tokens, _ in samples], True, padding_value=EOS),
            pad_sequence([labels for _, labels in samples], True, padding_value=IGNORED),
        )

    def model(self) -> LlamaForCausalLM:
        """stories260K, pretrained on children's stories."""
        return self.pretrained.model()

    def losses(self, model: nn.Module, batch: Any) -> PerSample:
        """The loss of the answers' tokens; the score is the mean over a row's own."""
        tokens, labels = batch
        return scoring.causal_lm(model(input_ids=tokens, use_cache=False).logits, labels)

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
