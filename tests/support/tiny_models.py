"""Small models from configurations and small data for them, shared by the tests of the Trainer."""

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    TrainingArguments,
)

from infobatch.integrations.transformers import InfoBatchConfig, InfoBatchTrainer

VOCABULARY = 24
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32}
SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 16}


def bert(kind=BertForSequenceClassification, **options):
    torch.manual_seed(0)
    return kind(BertConfig(**SIZES, **options))


def llama(dropout=0.1):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, pad_token_id=0, attention_dropout=dropout))


def gpt2():
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **sizes))


def t5():
    torch.manual_seed(0)
    config = T5Config(vocab_size=VOCABULARY, d_model=16, d_ff=32, num_layers=1, num_heads=2, d_kv=8)
    config.decoder_start_token_id = 0
    return T5ForConditionalGeneration(config)


def tokens(size, length=8, least=4):
    """Rows of ids with right padding (0), of lengths that differ; some follow a rule, some none."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(1, VOCABULARY, (size, length), generator=generator)
    rows[::2] = rows[::2, :1]  # every other row repeats one token
    lengths = torch.randint(least, length + 1, (size,), generator=generator)
    mask = (torch.arange(length) < lengths[:, None]).long()
    return rows * mask, mask


def classified(size, labels=None):
    """Sentences whose label is easy to tell for half of them."""
    ids, mask = tokens(size)
    if labels is None:
        labels = (ids[:, 0] % 2).tolist()
    return [
        {"input_ids": i, "attention_mask": m, "labels": label, "unused": 0.0}
        for i, m, label in zip(ids, mask, labels, strict=True)
    ]


def labelled_tokens(size, keep_every=1):
    """Sentences with one label per token, -100 where there is none."""
    ids, mask = tokens(size)
    labels = ids.masked_fill(mask == 0, -100)
    if keep_every > 1:
        labels = labels.masked_fill(torch.arange(ids.shape[1]) % keep_every != 0, -100)
    return [
        {"input_ids": i, "attention_mask": m, "labels": row}
        for i, m, row in zip(ids, mask, labels, strict=True)
    ]


def regression_targets(size):
    return torch.linspace(-1, 1, size).tolist()


def several_labels(size):
    return (torch.arange(size)[:, None] % torch.tensor([2, 3, 5]) == 0).float()


TASKS = {
    "sequence classification": (bert, classified),
    "regression": (
        lambda: bert(num_labels=1),
        lambda size: classified(size, regression_targets(size)),
    ),
    "several labels": (
        lambda: bert(num_labels=3, problem_type="multi_label_classification"),
        lambda size: classified(size, several_labels(size)),
    ),
    "causal language model": (llama, labelled_tokens),
    "GPT-2": (gpt2, labelled_tokens),
    "masked language model": (
        lambda: bert(BertForMaskedLM),
        lambda size: labelled_tokens(size, keep_every=3),
    ),
    "token classification": (
        lambda: bert(BertForTokenClassification, num_labels=VOCABULARY),
        labelled_tokens,
    ),
    "sequence to sequence": (t5, labelled_tokens),
}


def arguments(folder, **options):
    """Training arguments for a quiet run on the CPU."""
    quiet = {
        "per_device_train_batch_size": 8,
        "num_train_epochs": 3,
        "learning_rate": 1e-2,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "log_level": "error",
    }
    return TrainingArguments(str(folder), **(quiet | options))


class Watched(InfoBatchTrainer):
    """Notes the plan and the visited samples of each epoch, and the learning rate of each step."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.plans, self.visits, self.rates = {}, {}, []

    def training_step(self, model, inputs, *rest):
        epoch = self.pruner.epoch
        self.plans[epoch] = self.pruner.plan.order
        self.visits.setdefault(epoch, []).extend(inputs["infobatch_index"].tolist())
        self.rates.append((self.state.global_step, self._get_learning_rate()))
        return super().training_step(model, inputs, *rest)


def trainer(folder, task="sequence classification", size=48, kind=Watched, **options):
    """A trainer for one of the tasks; arguments that it does not know go to the training arguments."""
    names = (
        "optimizers",
        "compute_loss_func",
        "eval_dataset",
        "data_collator",
        "callbacks",
        "model",
    )
    model, data = TASKS[task]
    known = {name: options.pop(name) for name in names if name in options}
    config = options.pop("infobatch", InfoBatchConfig(delta=1.0))
    return kind(
        model=known.pop("model", None) or model(),
        args=arguments(folder, **options),
        train_dataset=known.pop("train_dataset", None) or data(size),
        infobatch=config,
        **known,
    )


def weights(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same_bits(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
