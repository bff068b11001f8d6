# SPDX-License-Identifier: Apache-2.0
"""An FMPQ checkpoint through transformers on a GPU: the kernels say what the CPU says."""

import pytest
import torch
from tiny_models import tiny_config, write_model, write_text, write_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from comet.files import read_json_lines
from comet.integrations.linear import FIELDS, FMPQLinear
from comet.integrations.transformers import quantize

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("model")
    sizes = {"hidden_size": 256, "intermediate_size": 640, "head_dim": 64}
    write_model(base / "model", tiny_config("llama", **sizes))
    write_tokenizer(base / "model")
    texts = [row["text"] for row in read_json_lines(write_text(base / "text.jsonl"))]
    tokenizer = AutoTokenizer.from_pretrained(base / "model")
    quantize(base / "model", tokenizer, texts, base / "q", windows=2, context=64)
    return base / "q"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_each_layer_says_what_the_cpu_says(folder, dtype):
    on_gpu = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map="cuda")
    on_cpu = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    cpu_layers = dict(on_cpu.named_modules())
    checked = 0
    for name, layer in on_gpu.named_modules():
        if not isinstance(layer, FMPQLinear):
            continue
        x = torch.randn(7, layer.in_features).to(dtype)
        y = layer(x.cuda()).cpu().float()
        expected = cpu_layers[name](x).float()
        assert (y - expected).norm() <= 2e-2 * expected.norm(), name
        # The GPU keeps one copy, in the kernel's layout.
        assert all(not getattr(layer, field).is_cuda for field in FIELDS)
        checked += 1
    assert checked == 21


def test_it_generates_and_compiles(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map="cuda")
    prompt = torch.arange(3, 13, device="cuda")[None]
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    tokens = model.generate(prompt, **options)
    assert tokens.shape == (1, 18)
    with torch.no_grad():
        plain = model(prompt).logits
        compiled = torch.compile(model, fullgraph=False)(prompt).logits
    torch.testing.assert_close(compiled, plain, rtol=5e-2, atol=5e-2)
