"""stories260K: a pretrained Llama with 260,032 parameters, read from llama2.c's files.

The checkpoint has llama2.c's legacy format: seven integers, then the weights as float32, one kind
after the other. The tokenizer's file has the score, the length and the bytes of each token.
"""

from __future__ import annotations

import re
import struct
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from infobatch.lab.datasets.folder import require_data

BOS, EOS, FIRST_BYTE = 1, 2, 3
_GET = (
    "Expected the folder 'stories260K' with stories260K.bin and tok512.bin of "
    "https://huggingface.co/karpathy/tinyllamas (MIT)."
)


class Stories260K:
    """The files of the model."""

    def __init__(self, folder: Path | None) -> None:
        self.path = require_data(folder, "stories260K", _GET)

    def model(self) -> LlamaForCausalLM:
        """The pretrained model as a transformers model."""
        return read_model(self.path / "stories260K.bin")

    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return Tokenizer((self.path / "tok512.bin").read_bytes())


def read_model(path: Path) -> LlamaForCausalLM:
    """Convert a legacy checkpoint of llama2.c."""
    raw = path.read_bytes()
    width, hidden, layers, heads, key_heads, vocabulary, length = struct.unpack("<7i", raw[:28])
    tied = vocabulary > 0  # a negative size means that the output layer has separate weights
    vocabulary = abs(vocabulary)
    head = width // heads
    weights = torch.from_numpy(np.frombuffer(raw, "<f4", offset=28).copy())
    at = 0

    def take(*shape: int) -> torch.Tensor:
        nonlocal at
        count = int(np.prod(shape))
        at += count
        return weights[at - count : at].view(shape)

    embedding = take(vocabulary, width)
    by_layer = {
        "input_layernorm": take(layers, width),
        "self_attn.q_proj": take(layers, heads * head, width),
        "self_attn.k_proj": take(layers, key_heads * head, width),
        "self_attn.v_proj": take(layers, key_heads * head, width),
        "self_attn.o_proj": take(layers, width, heads * head),
        "post_attention_layernorm": take(layers, width),
        "mlp.gate_proj": take(layers, hidden, width),
        "mlp.down_proj": take(layers, width, hidden),
        "mlp.up_proj": take(layers, hidden, width),
    }
    # llama2.c rotates neighbouring pairs of a head's entries, transformers its two halves.
    for name in ("self_attn.q_proj", "self_attn.k_proj"):
        pairs = by_layer[name].view(layers, -1, head // 2, 2, width)
        by_layer[name] = pairs.transpose(2, 3).reshape(layers, -1, width)
    state = {"model.embed_tokens.weight": embedding, "model.norm.weight": take(width)}
    for name, tensors in by_layer.items():
        for number, tensor in enumerate(tensors):
            state[f"model.layers.{number}.{name}.weight"] = tensor
    take(length * head)  # the rotation tables, which transformers computes itself
    state["lm_head.weight"] = embedding if tied else take(vocabulary, width)
    if at != len(weights):
        raise ValueError(
            f"{path} has {len(weights):,} weights where its header needs {at:,}. Expected llama2.c's "
            "legacy form of a model (version 0); download the file again."
        )
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=key_heads,
            max_position_embeddings=length,
            rms_norm_eps=1e-5,
            tie_word_embeddings=tied,
            bos_token_id=BOS,
            eos_token_id=EOS,
        )
    )
    model.load_state_dict(state)
    return model


class Tokenizer:
    """Converts text to token numbers and back, merging pairs of tokens by best score."""

    def __init__(self, stored: bytes) -> None:
        self.tokens: list[bytes] = []
        self.scores: list[float] = []
        at = 4  # after the length of the longest token
        while at < len(stored):
            score, size = struct.unpack_from("<fi", stored, at)
            self.tokens.append(stored[at + 8 : at + 8 + size])
            self.scores.append(score)
            at += 8 + size
        # The texts of control and byte tokens are not literal.
        first_text = FIRST_BYTE + 256
        self.numbers = {token: i for i, token in enumerate(self.tokens) if i >= first_text}
        if any(b" " in token[1:] for token in self.numbers):
            raise ValueError(
                "Tokenizer() got a token with a space inside, expected separate words."
            )
        self._encode_word = cache(self._merge)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without one for its beginning."""
        # A token has a space only at its start, so words are independent and encoded once each.
        words = re.findall(r" ?[^ ]+| ", f" {text}") if text else []
        return [number for word in words for number in self._encode_word(word)]

    def decode(self, numbers: list[int]) -> str:
        """The text of tokens, without control tokens."""
        parts = [
            bytes([number - FIRST_BYTE]) if number < FIRST_BYTE + 256 else self.tokens[number]
            for number in numbers
            if number >= FIRST_BYTE
        ]
        return b"".join(parts).decode(errors="replace").removeprefix(" ")

    def _merge(self, word: str) -> tuple[int, ...]:
        numbers: list[int] = []
        for character in word:
            code = character.encode()
            known = self.numbers.get(code)
            numbers += [byte + FIRST_BYTE for byte in code] if known is None else [known]
        while True:
            merged = [
                (self.scores[number], -place, number)
                for place, (left, right) in enumerate(pairwise(numbers))
                if (number := self.numbers.get(self.tokens[left] + self.tokens[right])) is not None
            ]
            if not merged:
                return tuple(numbers)
            _, place, number = max(merged)
            numbers[-place : 2 - place] = [number]
