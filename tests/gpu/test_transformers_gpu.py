# SPDX-License-Identifier: Apache-2.0
"""An FMPQ checkpoint through transformers on a GPU: the kernels say what the CPU says, and a
compiled model what the eager one says.

Compiling is tested three times, since Inductor's own rounding hides what a wrong operator does: it
keeps float32 inside what it fuses, a changed bit turns codes of the next layer, and the logits of
this model then move by a tenth of their size, on a CPU as on a GPU. Two tests therefore leave
nothing to rounding and ask for every bit; the third measures what one bit does and allows Inductor
that.
"""

import pytest
import torch
from tiny_models import VOCAB, tiny_config, write_calm_model, write_text, write_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from comet.files import read_json_lines
from comet.integrations.linear import FIELDS, FMPQLinear
from comet.integrations.transformers import quantize

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("model")
    sizes = {"hidden_size": 256, "intermediate_size": 640, "head_dim": 64}
    write_calm_model(base / "model", tiny_config("llama", **sizes))
    write_tokenizer(base / "model")
    texts = [row["text"] for row in read_json_lines(write_text(base / "text.jsonl"))]
    tokenizer = AutoTokenizer.from_pretrained(base / "model")
    quantize(base / "model", tokenizer, texts, base / "q", windows=2, context=64)
    return base / "q"


@pytest.fixture
def model(folder):
    torch._dynamo.reset()
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map=DEVICE)


@pytest.fixture
def prompts():
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, VOCAB, (8, 60), generator=generator).to(DEVICE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_each_layer_says_what_the_cpu_says(folder, dtype):
    on_gpu = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map=DEVICE)
    on_cpu = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    cpu_layers = dict(on_cpu.named_modules())
    checked = 0
    for name, layer in on_gpu.named_modules():
        if not isinstance(layer, FMPQLinear):
            continue
        x = torch.randn(7, layer.in_features).to(dtype)
        y = layer(x.to(DEVICE)).cpu().float()
        expected = cpu_layers[name](x).float()
        assert (y - expected).norm() <= 2e-2 * expected.norm(), name
        # The GPU keeps one copy, in the kernel's layout.
        assert all(not getattr(layer, field).is_cuda for field in FIELDS)
        checked += 1
    assert checked == 21


def test_it_generates(model):
    prompt = torch.arange(3, 13, device=DEVICE)[None]
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    tokens = model.generate(prompt, **options)
    assert tokens.shape == (1, 18)
    assert torch.equal(model.generate(prompt, **options), tokens)


@torch.no_grad()
def test_a_traced_model_gives_the_same_bits(model, prompts):
    """aot_eager runs the operators that eager runs, one by one. What differs is a fake with other
    shapes or strides, a result that shares memory, or an argument that is written unannounced."""
    plain = model(prompts).logits
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(prompts).logits, plain)


@torch.no_grad()
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("tokens", [10, 2048])
def test_between_compiled_kernels_that_round_nothing(model, tokens, mode):
    """Inductor's kernels stand before and behind every layer here, but round nothing, so that each
    bit must be eager's: a layer that reads its input before the kernel in front has written it, or
    takes its strides for others, has no rounding to hide behind."""
    pairs = [(layer.mlp.gate_proj, layer.mlp.down_proj) for layer in model.model.layers]

    def chain(x):
        for first, second in pairs:
            # Powers of two and signs are exact; a slice of the middle has strided rows.
            h = first(x.flip(-1) * 0.5)
            h = torch.cat((h, -h, h.abs()), dim=-1)[:, h.shape[-1] : 2 * h.shape[-1]]
            x = -second(h) * 4
        return x

    compiled = torch.compile(chain, fullgraph=True, mode=mode)
    generator = torch.Generator().manual_seed(2)
    for _ in range(8):
        x = torch.randn(tokens, 256, generator=generator).bfloat16().to(DEVICE)
        assert torch.equal(compiled(x).clone(), chain(x))


@torch.no_grad()
def test_inductor_moves_logits_no_further_than_one_bit_does(folder, model, prompts):
    """The logits may differ from eager's by what moving the embeddings by up to one unit in the
    last place makes, and are as far from a float32 run of the same codes. On a CPU, where no
    kernel of ours is involved, noise moves them by 0.109 of their norm and Inductor by 0.096."""
    plain = model(prompts).logits
    exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(prompts.cpu()).logits
    embedded = model.model.embed_tokens(prompts)
    noisy = [model(inputs_embeds=_one_bit_off(embedded, seed)).logits for seed in range(4)]
    compiled = torch.compile(model)(prompts).logits
    assert _distance(compiled, plain) <= 1.1 * max(_distance(other, plain) for other in noisy)
    assert _distance(compiled, exact) <= 1.1 * max(_distance(other, exact) for other in noisy)


def _one_bit_off(x: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    step = torch.randint(-1, 2, x.shape, generator=generator, dtype=torch.int16)
    # A zero has no neighbour of both signs among these integers.
    return (x.view(torch.int16) + step.to(x.device) * (x != 0)).view(x.dtype)


def _distance(logits: torch.Tensor, other: torch.Tensor) -> float:
    logits, other = logits.float().cpu(), other.float().cpu()
    return float((logits - other).norm() / other.norm())
