# python examples/trl_lora.py --data DIR
"""Instruction tuning with TRL's SFTTrainer and LoRA on GSM8K, with pruned epochs.

DIR holds gsm8k/train.jsonl.gz (a "question" and an "answer" a line). The model and the tokenizer are built
here, so nothing is downloaded; adapters of an untrained model learn little, it is the set-up that is shown.
"""

import argparse
import gzip
import json
from pathlib import Path

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig

from infobatch.integrations.trl import InfoBatchConfig, InfoBatchSFTTrainer


def read(folder, samples):
    with gzip.open(folder / "gsm8k" / "train.jsonl.gz", "rt", encoding="utf8") as lines:
        rows = [json.loads(line) for line in list(lines)[:samples]]
    return [{"prompt": row["question"], "completion": " " + row["answer"]} for row in rows]


def learned_tokenizer(rows):
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel()
    special = trainers.BpeTrainer(vocab_size=512, special_tokens=["<pad>", "<eos>"])
    words.train_from_iterator((row["prompt"] + row["completion"] for row in rows), special)
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", default="trainer-output")
    options = parser.parse_args()
    rows = read(options.data, options.samples)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    trainer = InfoBatchSFTTrainer(
        model=LlamaForCausalLM(LlamaConfig(vocab_size=512, num_hidden_layers=2, **sizes)),
        args=SFTConfig(
            options.out, num_train_epochs=options.epochs, per_device_train_batch_size=8,
            learning_rate=1e-3, max_length=256, bf16=False, save_strategy="epoch", report_to=[],
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=learned_tokenizer(rows),
        peft_config=LoraConfig(target_modules=["q_proj", "v_proj"]),
        infobatch=InfoBatchConfig(prune_ratio=0.5, delta=0.875),
    )  # fmt: skip
    trainer.train()  # ends with a line on what was saved


if __name__ == "__main__":
    main()
