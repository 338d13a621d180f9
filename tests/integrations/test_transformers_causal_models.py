"""Every causal language model of transformers: its samples' losses are those that the model has.

Which of them shift the labels is written nowhere: the class, its ``loss_type`` and what its forward
does disagree in some twenty of them. So each is trained, from a configuration made small by the names
that sizes have there.
"""

import inspect

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from infobatch.integrations.transformers import InfoBatchConfig, InfoBatchTrainer
from tiny_models import arguments

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

VOCABULARY, ROWS, LENGTH = 24, 8, 8

SIZES = {
    32: "hidden_size intermediate_size n_embd n_inner d_model d_inner dff d_ff ffn_dim emb_dim "
    "embedding_size decoder_ffn_dim encoder_ffn_dim feed_forward_size ffn_hidden_size "
    "max_position_embeddings n_positions n_ctx max_seq_len",
    VOCABULARY: "vocab_size vocab_size_per_layer_input shape_vocab_size pronunciation_vocab_size",
    16: "moe_intermediate_size expert_ffn_hidden_size expert_intermediate_size qk_head_dim "
    "index_head_dim",
    8: "head_dim rotary_dim kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim "
    "hidden_size_per_layer_input shape_embed_dim pronunciation_embed_dim",
    4: "num_attention_heads n_head num_heads n_heads decoder_attention_heads encoder_attention_heads "
    "num_experts num_local_experts n_routed_experts mamba_n_heads index_topk",
    2: "num_key_value_heads num_hidden_layers n_layer n_layers num_layers decoder_layers "
    "num_experts_per_tok moe_topk top_k zero_expert_num index_n_heads eos_token_id",
    1: "encoder_layers n_group topk_group n_shared_experts num_shared_experts first_k_dense_replace "
    "bos_token_id is_decoder",
    0: "pad_token_id",
}
OPTIONS = {name: size for size, names in SIZES.items() for name in names.split()} | {
    "is_decoder": True,
    "use_cache": False,
    "mamba_d_head": "auto",
    "attention_types": [[["global", "local"], 1]],
    "attention_layers": None,
    "axial_pos_shape": (4, 2),
    "axial_pos_embds_dim": (16, 16),
    "default_language": "en_XX",
    "languages": ["en_XX"],
}
LATENT = {"num_key_value_heads": 4}  # attention with latent keys has as many of them as queries
ALTERNATING = {"layer_types": ["full_attention", "sliding_attention"]}
OF_ONE_MODEL = {
    **dict.fromkeys(["axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32"], LATENT),
    **dict.fromkeys(["glm4_moe_lite", "glm_moe_dsa", "longcat_flash", "minicpm3", "youtu"], LATENT),
    "bamba": {"mamba_n_heads": 8},
    "gemma3n_text": {**ALTERNATING, "num_kv_shared_layers": 0},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8},
    "zaya": {"num_experts_per_tok": 1},
}
# Why the rest is not trained here. A model that comes with a new transformers is in neither list.
_LARGE = "has parts whose sizes go by other names: more than three million parameters are left"
_PARTS = "the text model cannot be told from the configuration's other parts"
LEFT_OUT = {
    **dict.fromkeys(["blt", "fuyu", "gemma3", "gemma4_unified", "got_ocr2"], _LARGE),
    **dict.fromkeys(["gemma4_unified_assistant", "kimi_linear", "phi4_multimodal"], _LARGE),
    **dict.fromkeys(["moss_transcribe_diarize"], _LARGE),
    **dict.fromkeys(["musicgen", "musicgen_melody"], _PARTS),
    "cohere_compass_text": "its default configuration lacks the positions of full attention",
    "dbrx": "its default configuration lacks rope_theta",
    "gemma3n": "needs timm",
    "gemma4_assistant": "wants a configuration without layer inputs, which is not the default",
    "git": "trains on text beside an image only",
    "moshi": "its default configuration is not valid",
    **dict.fromkeys(["zamba", "zamba2"], "its default layers cannot be reduced by their number"),
}
UNSUPPORTED = {"prophetnet"}  # whose loss is over several predictions of each token
# Each way of saying, or not saying, that labels are shifted; and one model of each family.
QUICK = ["bart", "bert", "bert-generation", "cpmant", "ctrl", "gpt2", "llama", "openai-gpt", "opt"]
QUICK += ["reformer", "roberta", "trocr", "whisper", "xlm", "xlnet"]


def configuration(kind, options):
    """A small configuration: sizes, and no dropout, so that a loss can be computed again."""
    known = inspect.signature(kind).parameters
    chosen = {name: value for name, value in options.items() if name in known}
    for name, parameter in known.items():
        if "drop" in name and isinstance(parameter.default, float):
            chosen[name] = 0.0
        part = kind.sub_configs.get(name)
        if part is not None and part is not transformers.AutoConfig:
            chosen[name] = configuration(part, options).to_dict()
    return kind(**chosen)


def small_model(name):
    """The model, or None where the configuration leaves it with millions of parameters."""
    kind = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name])
    config = configuration(CONFIG_MAPPING[name], OPTIONS | OF_ONE_MODEL.get(name, {}))
    if not isinstance(config, kind.config_class):
        config = config.get_text_config()
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in kind(config).parameters())
    return kind(config) if size < 3e6 else None


def rows():
    ids = torch.randint(3, VOCABULARY, (ROWS, LENGTH))
    labels = ids.clone()
    for row in range(ROWS):
        labels[row, LENGTH - row % 4 :] = -100
    return [{"input_ids": i, "labels": row} for i, row in zip(ids, labels, strict=True)]


def trains(name, folder):
    """Scores after an epoch at learning rate 0 are what the model itself says of each row."""
    model = small_model(name)
    assert model is not None, f"{name} has too many parameters for a test"
    data = rows()
    trainer = InfoBatchTrainer(
        model=model,
        args=arguments(
            folder, num_train_epochs=1, per_device_train_batch_size=4, learning_rate=0.0
        ),
        train_dataset=data,
        infobatch=InfoBatchConfig(),
    )
    trainer.train()
    with torch.no_grad():
        expected = [
            model(**{key: value[None] for key, value in row.items()}).loss.item() for row in data
        ]
    assert trainer.pruner.scores.tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", QUICK)
def test_scores_are_the_model_s_own_losses(name, tmp_path):
    trains(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - LEFT_OUT.keys() - UNSUPPORTED)
)
def test_scores_of_every_causal_model(name, tmp_path):
    trains(name, tmp_path)


def test_models_that_are_left_out_are_still_there():
    assert MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() >= LEFT_OUT.keys() | UNSUPPORTED


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_a_loss_of_another_kind_raises(name, tmp_path):
    torch.manual_seed(
        1
    )  # rows whose first batch can tell: with few, both losses may agree by chance
    message = r"(?s)compute_loss\(\) got a loss of .* first batch, but .* shifts the labels in another way"
    with pytest.raises(RuntimeError, match=message + r" .*Override per_sample_losses"):
        trains(name, tmp_path)


@pytest.mark.parametrize(("name", "shifts"), [("gpt2", True), ("llama", True), ("bert", True)])
def test_where_both_ways_give_one_loss_transformers_is_asked(name, shifts, tmp_path, monkeypatch):
    """With a head of zeros every token has the same loss, which cannot tell; later ones can."""
    monkeypatch.setitem(OPTIONS, "tie_word_embeddings", False)
    model = small_model(name)
    torch.nn.init.zeros_(model.get_output_embeddings().weight)
    options = {"num_train_epochs": 3, "per_device_train_batch_size": 4, "learning_rate": 1e-2}
    trainer = InfoBatchTrainer(
        model=model, args=arguments(tmp_path, **options), train_dataset=rows()
    )
    trainer.train()
    assert trainer._shift is shifts


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_label_smoothing_shifts_by_the_trainer_s_rule(name, tmp_path):
    """The Trainer smooths with shifted labels for every causal model, whatever its own loss does."""
    options = {"num_train_epochs": 1, "per_device_train_batch_size": 4, "learning_rate": 0.0}
    trainer = InfoBatchTrainer(
        model=small_model(name),
        args=arguments(tmp_path, **options, label_smoothing_factor=0.1),
        train_dataset=rows(),
    )
    trainer.train()
    assert trainer._shift is True
