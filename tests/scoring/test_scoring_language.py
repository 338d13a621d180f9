"""Language models, beside transformers' own loss: padded, masked and packed."""

import pytest
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.data.data_collator import DataCollatorWithFlattening
from transformers.loss.loss_utils import ForCausalLMLoss

from infobatch import scoring
from scoring_checks import assert_finite_gradient, assert_mean_is, assert_scored_alone

VOCABULARY = 11


def batch():
    """Padding on the right, a masked prompt, a row that is all masked, a row of one label."""
    logits, labels = torch.randn(5, 8, VOCABULARY), torch.randint(VOCABULARY, (5, 8))
    labels[0, 5:] = -100
    labels[1, :4] = -100
    labels[2] = -100
    labels[3, 1:7] = -100
    return logits, labels


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config)


@pytest.mark.parametrize("num_items", [None, 40, torch.tensor(40)])
def test_beside_transformers(llama, num_items):
    _, labels = batch()
    inputs = labels.clamp_min(0)
    options = {} if num_items is None else {"num_items_in_batch": num_items}
    output = llama(input_ids=inputs, labels=labels, **options)
    result = scoring.causal_lm(output.logits, labels, num_items=num_items)
    torch.testing.assert_close(result.losses.mean(), output.loss, atol=1e-6, rtol=1e-6)
    weight = llama.lm_head.weight
    theirs = torch.autograd.grad(output.loss, weight, retain_graph=True)
    ours = torch.autograd.grad(result.losses.mean(), weight)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("num_items", [None, 40])
def test_rows(num_items):
    logits, labels = batch()
    result = assert_mean_is(
        lambda x: scoring.causal_lm(x, labels, num_items=num_items),
        lambda x: ForCausalLMLoss(x, labels, VOCABULARY, num_items_in_batch=num_items),
        logits,
    )
    assert_scored_alone(lambda i: scoring.causal_lm(logits[i], labels[i]), 5, result)
    assert result.scores.isnan().tolist() == [False, False, True, False, False]
    assert result.losses[2] == 0
    for row in (0, 1, 3, 4):
        alone = ForCausalLMLoss(logits[row : row + 1], labels[row : row + 1], VOCABULARY)
        torch.testing.assert_close(result.scores[row], alone)


def test_padding_changes_no_score():
    logits, labels = batch()
    longer = functional.pad(labels, (0, 4), value=-100)
    more = torch.cat([logits, torch.randn(5, 4, VOCABULARY)], 1)
    short, long = scoring.causal_lm(logits, labels), scoring.causal_lm(more, longer)
    torch.testing.assert_close(short.scores, long.scores, equal_nan=True)
    torch.testing.assert_close(short.losses, long.losses)


def test_labels_that_need_no_shift():
    logits, labels = batch()
    assert_mean_is(
        lambda x: scoring.causal_lm(x, labels, shift=False),
        lambda x: functional.cross_entropy(x.flatten(0, 1), labels.flatten()),
        logits,
    )


def test_targets_that_are_shifted_already_are_scored_the_same_with_shift_off():
    """nanoGPT's targets are the tokens one position later, and shifted again they mean another token."""
    logits, labels = batch()
    shifted = functional.pad(labels[:, 1:], (0, 1), value=-1)
    shifted[shifted == -100] = -1
    expected = scoring.causal_lm(logits, labels)
    result = scoring.causal_lm(logits, shifted, shift=False, ignore_index=-1)
    torch.testing.assert_close(result.scores, expected.scores, equal_nan=True)
    torch.testing.assert_close(result.losses, expected.losses)
    twice = scoring.causal_lm(logits, shifted, ignore_index=-1)
    assert not torch.isclose(twice.losses.mean(), expected.losses.mean(), rtol=1e-3)


def test_all_masked():
    logits = torch.randn(2, 4, VOCABULARY, requires_grad=True)
    for boundaries in (None, torch.tensor([0, 4, 8])):
        result = scoring.causal_lm(logits, torch.full((2, 4), -100), boundaries=boundaries)
        (gradient,) = assert_finite_gradient(result, logits)
        assert gradient.eq(0).all()
        assert result.losses.eq(0).all()
        assert result.scores.isnan().all()


@pytest.mark.parametrize("shift", [True, False])
def test_token_losses(shift):
    logits, labels = batch()
    losses = scoring.token_losses(logits, labels, shift=shift)
    assert losses.shape == labels.shape
    for row in range(5):
        for place in range(8):
            source = place - 1 if shift else place
            expected = torch.tensor(0.0)
            if labels[row, place] != -100 and source >= 0:
                expected = functional.cross_entropy(logits[row, source], labels[row, place])
            torch.testing.assert_close(losses[row, place], expected)


def sequences():
    lengths = [3, 5, 2, 1, 6]
    return [torch.randint(VOCABULARY, (length,)) for length in lengths]


def test_packed_is_padded(llama):
    """The same sequences in one row or in a row each: the same losses and scores, mean and all."""
    rows = sequences()
    logits = [torch.randn(len(row), VOCABULARY) for row in rows]
    padded_labels = torch.nn.utils.rnn.pad_sequence(rows, True, -100)
    padded = scoring.causal_lm(torch.nn.utils.rnn.pad_sequence(logits, True), padded_labels)
    boundaries = torch.tensor([0, 3, 8, 10, 11, 17])
    packed = scoring.causal_lm(
        torch.cat(logits).unsqueeze(0), torch.cat(rows).unsqueeze(0), boundaries=boundaries
    )
    torch.testing.assert_close(packed.losses, padded.losses)
    torch.testing.assert_close(packed.scores, padded.scores, equal_nan=True)
    assert packed.scores.isnan().tolist() == [False, False, False, True, False]


def test_packed_as_transformers_packs(llama):
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    packed = collate([{"input_ids": row.tolist()} for row in sequences()], return_tensors="pt")
    output = llama(packed["input_ids"], labels=packed["labels"])
    result = scoring.causal_lm(output.logits, packed["labels"], boundaries=packed["cu_seq_lens_q"])
    assert len(result.losses) == 5
    torch.testing.assert_close(result.losses.mean(), output.loss, atol=1e-6, rtol=1e-6)
    made = scoring.sequence_boundaries(packed["position_ids"])
    assert made.tolist() == packed["cu_seq_lens_q"].tolist()
    weight = llama.lm_head.weight
    theirs = torch.autograd.grad(output.loss, weight, retain_graph=True)
    ours = torch.autograd.grad(result.losses.mean(), weight)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_several_packed_rows():
    logits, labels = torch.randn(2, 8, VOCABULARY), torch.randint(VOCABULARY, (2, 8))
    labels[0, 6:] = -100  # padding, which belongs to the sequence before it
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 0, 1, 2, 3, 4, 5]])
    boundaries = scoring.sequence_boundaries(positions)
    assert boundaries.tolist() == [0, 3, 8, 10, 16]
    result = scoring.causal_lm(logits, labels, boundaries=boundaries)
    pieces = [(0, 0, 3), (0, 3, 8), (1, 0, 2), (1, 2, 8)]
    for entry, (row, start, stop) in enumerate(pieces):
        alone = scoring.causal_lm(
            logits[row : row + 1, start:stop], labels[row : row + 1, start:stop]
        )
        torch.testing.assert_close(result.scores[entry : entry + 1], alone.scores)
    total = sum(
        scoring.token_losses(logits[r : r + 1, a:b], labels[r : r + 1, a:b]).sum()
        for r, a, b in pieces
    )
    torch.testing.assert_close(result.losses.mean(), total / (2 + 2 + 1 + 5))


def test_an_empty_sequence():
    logits, labels = torch.randn(1, 4, VOCABULARY), torch.randint(VOCABULARY, (1, 4))
    result = scoring.causal_lm(logits, labels, boundaries=torch.tensor([0, 2, 2, 4]))
    assert result.scores.isnan().tolist() == [False, True, False]


LOGITS, LABELS = torch.zeros(2, 4, 5), torch.zeros(2, 4).long()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: scoring.causal_lm(LOGITS[0], LABELS[0]),
            ValueError,
            r"causal_lm\(\) got logits of shape \(4, 5\), expected \(B, T, V\)",
        ),
        (
            lambda: scoring.token_losses(LOGITS, LABELS[:, 1:]),
            ValueError,
            r"token_losses\(\) got labels of shape \(2, 3\), expected \(2, 4\). .* not shifted",
        ),
        (
            lambda: scoring.causal_lm(LOGITS, LABELS.float()),
            TypeError,
            r"labels of torch.float32, expected integers",
        ),
        (
            lambda: scoring.causal_lm(LOGITS, LABELS, boundaries=torch.tensor([0, 3])),
            ValueError,
            r"boundaries from 0 to 3, expected rising offsets from 0 to 8",
        ),
        (
            lambda: scoring.causal_lm(LOGITS, LABELS, boundaries=torch.tensor([0, 5, 3, 8])),
            ValueError,
            r"boundaries from 0 to 8, expected rising",
        ),
        (
            lambda: scoring.causal_lm(LOGITS, LABELS, boundaries=torch.zeros(2, 4)),
            ValueError,
            r"boundaries of torch.Size\(\[2, 4\]\), expected a 1-D tensor .*sequence_boundaries",
        ),
        (
            lambda: scoring.causal_lm(LOGITS, LABELS, boundaries=torch.tensor([0.0, 8.0])),
            TypeError,
            r"boundaries of torch.float32, expected integers",
        ),
        (
            lambda: scoring.sequence_boundaries(torch.arange(3)),
            ValueError,
            r"sequence_boundaries\(\) got position_ids of torch.Size\(\[3\]\), expected \(B, T\)",
        ),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()
