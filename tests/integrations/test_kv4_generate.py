# SPDX-License-Identifier: Apache-2.0
"""The 4-bit KV cache inside transformers' own generate."""

import pytest
import torch
from tiny_models import tiny_config, write_model
from transformers import AutoModelForCausalLM

from comet.formats.kv4 import page_bytes, restore_keys, restore_values
from comet.integrations.kv4_cache import KV4Cache, KV4Layer

HEADS, DIM = 2, 64
OPTIONS = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    config = tiny_config(
        "llama", hidden_size=128, intermediate_size=96, head_dim=DIM, max_position_embeddings=512
    )
    write_model(folder, config)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def states(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, HEADS, tokens, DIM), torch.randn(2, HEADS, tokens, DIM)


@pytest.mark.parametrize("lengths", [(1,) * 70, (64, 1), (63, 1, 1), (130, 1), (10, 60, 100, 1)])
def test_tokens_read_back_as_the_format_keeps_them(lengths):
    keys, values = states(sum(lengths))
    layer, start = KV4Layer(), 0
    for length in lengths:
        part = slice(start, start + length)
        k, v = layer.update(keys[..., part, :], values[..., part, :])
        expected_k = torch.cat((restore_keys(keys[..., :start, :]), keys[..., part, :]), dim=-2)
        expected_v = torch.cat(
            (restore_values(values[..., :start, :]), values[..., part, :]), dim=-2
        )
        assert torch.equal(k, expected_k)
        assert torch.equal(v, expected_v)
        start += length
    assert layer.get_seq_length() == start


def test_it_takes_what_the_format_takes():
    keys, values = (t.half() for t in states(640))
    layer = KV4Layer()
    layer.update(keys, values)
    assert layer.nbytes() == 2 * HEADS * 10 * page_bytes(DIM)
    assert (keys.nbytes + values.nbytes) / layer.nbytes() == pytest.approx(3.556, abs=1e-3)


def test_sequences_can_be_selected_repeated_and_ordered():
    keys, values = states(70)
    one, other = KV4Layer(), KV4Layer()
    one.update(keys, values)
    other.update(keys.flip(0), values.flip(0))
    one.batch_repeat_interleave(2)
    one.batch_select_indices(torch.tensor([0, 2]))
    one.reorder_cache(torch.tensor([1, 0]))
    new = states(1)
    for got, expected in zip(one.update(*new), other.update(*new), strict=True):
        assert torch.equal(got, expected)
    with pytest.raises(ValueError, match="cannot be cropped"):
        one.crop(-1)
    one.reset()
    assert one.get_seq_length() == 0
    assert torch.equal(one.update(*new)[0], new[0])


def test_generate_with_padding_and_past_a_page(model):
    prompt = torch.randint(3, 90, (2, 50), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(prompt)
    mask[0, :20] = 0
    cache = KV4Cache()
    inputs = {"input_ids": prompt, "attention_mask": mask, "max_new_tokens": 40}
    tokens = model.generate(**inputs, past_key_values=cache, **OPTIONS)
    assert tokens.shape == (2, 90)
    assert cache.get_seq_length() == 89
    exact = model.generate(**inputs, **OPTIONS)
    # The first new token comes from 16-bit values in both.
    assert torch.equal(tokens[:, :51], exact[:, :51])
    layer = cache.layers[0]
    assert layer.nbytes() < 0.5 * 2 * 89 * HEADS * DIM * 2 * 4


def test_logits_are_those_of_attention_over_restored_values(model):
    prompt = torch.randint(3, 90, (1, 100), generator=torch.Generator().manual_seed(1))
    cache = KV4Cache()
    with torch.no_grad():
        model(prompt[:, :90], past_key_values=cache)
        got = model(prompt[:, 90:], past_key_values=cache).logits
        exact = model(prompt).logits[:, 90:]
    error = (got - exact).norm() / exact.norm()
    assert 1e-4 < error < 0.5
