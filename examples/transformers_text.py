# python examples/transformers_text.py --data DIR
"""A small language model on GSM8K's questions and answers, with pruned epochs in the Trainer.

DIR holds gsm8k/train.jsonl.gz. Bytes are the tokens and the model is new, so nothing is downloaded.
"""

import argparse
import gzip
import json
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from infobatch.integrations.transformers import InfoBatchConfig, InfoBatchTrainer


def read(folder, samples, length=256):
    """Rows of bytes (0 is padding); the loss is on the answer alone."""
    rows = []
    with gzip.open(folder / "gsm8k" / "train.jsonl.gz", "rt", encoding="utf8") as lines:
        for line in list(lines)[:samples]:
            row = {key: text.encode() for key, text in json.loads(line).items()}
            ids = torch.tensor(list(row["question"] + b"\n" + row["answer"])[-length:])
            answer = torch.arange(len(ids)) >= len(ids) - len(row["answer"])
            rows.append({"input_ids": ids, "labels": ids.where(answer, -100)})
    return rows


def collate(rows):
    ids = pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    labels = pad_sequence([row["labels"] for row in rows], batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def main():
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, num_hidden_layers=2, **sizes))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=7473)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", default="trainer-output")
    options = parser.parse_args()
    data = read(options.data, options.samples)
    held_out = len(data) // 20
    args = TrainingArguments(
        options.out, num_train_epochs=options.epochs, per_device_train_batch_size=16,
        learning_rate=1e-3, eval_strategy="epoch", save_strategy="epoch", report_to=[],
    )  # fmt: skip
    trainer = InfoBatchTrainer(
        model=model, args=args, train_dataset=data[held_out:], eval_dataset=data[:held_out],
        data_collator=collate, infobatch=InfoBatchConfig(prune_ratio=0.5, delta=0.875),
    )  # fmt: skip
    trainer.train()


if __name__ == "__main__":
    main()
