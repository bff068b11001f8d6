# SPDX-License-Identifier: Apache-2.0
"""Attention backends on a CPU: what they call, with which operands; no GPU is needed."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from comet.errors import UserError
from comet.formats.kv4 import PAGE, page_bytes
from comet.speed.attention_backends import (
    ATTENTION_BACKENDS,
    AttentionShape,
    attention_backend_of,
    comet_kv4,
    random_block_table,
    sdpa,
    vllm_fa3,
    vllm_turboquant,
)
from comet.speed.attention_cases import BACKENDS
from comet.speed.backends import Unavailable

CPU = torch.device("cpu")
SHAPE = AttentionShape(batch=2, context=2 * PAGE, heads=4, kv_heads=2, head_dim=64)
# As vLLM 0.24 registers them, the output apart: a stand-in returns nothing that aliases.
FWD = """fwd(Tensor q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v,
Tensor(a!)? out,
Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q,
Tensor? seqused_k, int? max_seqlen_q, int? max_seqlen_k, Tensor? page_table, Tensor? kv_batch_idx,
Tensor? leftpad_k, Tensor? rotary_cos, Tensor? rotary_sin, Tensor? seqlens_rotary,
Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, float softmax_scale, bool is_causal,
int window_size_left, int window_size_right, float softcap, bool is_rotary_interleaved,
Tensor? scheduler_metadata, int num_splits, bool? pack_gqa, int sm_margin, Tensor? s_aux,
int cp_world_size, int cp_rank, Tensor? cp_tot_seqused_k) -> Tensor[]"""
SCHEDULE = """get_scheduler_metadata(int batch_size, int max_seqlen_q, int max_seqlen_k,
int num_heads, int num_heads_k, int headdim, int headdim_v, ScalarType qkv_dtype, Tensor seqused_k,
Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q,
Tensor? leftpad_k, int? page_size, int max_seqlen_k_new, bool is_causal, int window_size_left,
int window_size_right, bool has_softcap, int num_splits, bool? pack_gqa, int sm_margin) -> Tensor"""
TURBOQUANT = """
import torch
from vllm.platforms import current_platform
from vllm.triton_utils import tl, triton
from vllm.v1.attention.ops.triton_decode_attention import _fwd_kernel_stage2

assert current_platform.is_cuda_alike() and tl is triton.language


def triton_turboquant_decode_attention(
    query, kv_cache, block_table, seq_lens, Pi, centroids, scale, mse_bits, key_packed_size,
    value_quant_bits, key_fp8=False, norm_correction=False, PiT=None, mid_o_buf=None,
    output_buf=None, lse_buf=None, buf_holder=None, max_num_kv_splits=32,
):
    CALLS.append(locals())
    return output_buf.copy_(query)


CALLS = []
"""


@pytest.fixture(autouse=True)
def two_copies(monkeypatch):
    """Two caches whatever their size: a CPU tells no L2 cache."""
    for module in (comet_kv4, sdpa, vllm_fa3, vllm_turboquant):
        monkeypatch.setattr(module, "copies_past_l2", lambda _bytes, _device: 2)


def test_the_registry_is_the_list_of_cases():
    assert tuple(ATTENTION_BACKENDS) == BACKENDS
    with pytest.raises(UserError, match="'fa2' is unknown; use one of comet-kv4, "):
        attention_backend_of("fa2")


@pytest.mark.parametrize("name", [name for name in BACKENDS if name.startswith("vllm")])
def test_missing_rivals_say_how_to_get_them(name, monkeypatch, tmp_path):
    monkeypatch.delenv("COMET_VLLM_SITE", raising=False)
    with pytest.raises(Unavailable, match="set COMET_VLLM_SITE"):
        attention_backend_of(name).load(SHAPE, CPU)
    monkeypatch.setenv("COMET_VLLM_SITE", str(tmp_path))
    with pytest.raises(Unavailable, match=f"{tmp_path}.* does not exist"):
        attention_backend_of(name).load(SHAPE, CPU)


def test_block_tables_name_every_page_once():
    table = random_block_table(3, 5, CPU)
    assert table.dtype == torch.int32
    assert table.flatten().sort().values.tolist() == list(range(15))
    assert table.flatten().tolist() != list(range(15))


def test_sdpa_takes_a_groups_heads_as_rows():
    workload = sdpa.bf16(SHAPE, CPU)
    out = workload.calls[0]()
    assert out.shape == (2, 2, 2, 64)
    assert len(workload.calls) == workload.details["copies"] == 2


@pytest.fixture
def kv4(monkeypatch):
    plan = SimpleNamespace(warps=4, stages=2, blocks=1)
    monkeypatch.setattr(comet_kv4, "plan_of", lambda *_: plan)
    return comet_kv4.kv4(SHAPE, CPU)


def test_kv4_decodes_from_rotated_pools(kv4):
    first, second = (call() for call in kv4.calls)
    assert first.shape == (2, 4, 64)
    assert first.isfinite().all() and first.any()
    assert not torch.equal(first, second)
    assert kv4.details["plan"]["warps"] == 4


def test_kv4_appends_64_steps_of_which_the_last_seals(kv4, monkeypatch):
    seen = []
    monkeypatch.setattr(
        comet_kv4, "kv4_append", lambda *operands, dependent_launch: seen.append(operands)
    )
    calls = comet_kv4._appends(SHAPE, CPU)["append_time"]
    assert len(calls) == len(kv4.besides["append_time"]) == 2 * PAGE
    for call in calls:
        call()
    lengths = [operands[5].tolist() for operands in seen]
    assert lengths[:2] == [[129, 129]] * 2 and lengths[-1] == [192, 192]
    assert len({operands[2].data_ptr() for operands in seen}) == 2
    pages = seen[0][4][:, SHAPE.context // PAGE]
    assert sorted(pages.tolist()) == [0, 1]


def test_kv4_appends_are_real_ones(monkeypatch):
    monkeypatch.setattr(comet_kv4, "copies_past_l2", lambda _bytes, _device: 1)
    calls = comet_kv4._appends(SHAPE, CPU)["append_time"]
    for call in calls:
        call()
    cache = calls[0].__defaults__[0][0]
    assert cache.shape == (2, 2, page_bytes(64))
    assert cache.any(dim=-1).all()


def test_kv4_appends_of_a_small_batch_are_not_timed(monkeypatch):
    monkeypatch.setattr(comet_kv4, "copies_past_l2", lambda _bytes, _device: 25)
    assert comet_kv4._appends(SHAPE, CPU) == {}


@pytest.fixture
def flash(monkeypatch, tmp_path):
    """Stands in for FlashAttention 3, with its signatures; the operands of each call."""
    library = torch.library.Library("_vllm_fa3_C", "FRAGMENT")
    calls = {"fwd": [], "get_scheduler_metadata": []}

    def forward(*operands):
        calls["fwd"].append(operands)
        operands[6].copy_(operands[0])
        return []

    def schedule(*operands):
        calls["get_scheduler_metadata"].append(operands)
        return torch.zeros(9, dtype=torch.int32)

    for definition, function in ((FWD, forward), (SCHEDULE, schedule)):
        library.define(definition.replace("\n", " "))
        library.impl(definition.partition("(")[0], function, "CompositeExplicitAutograd")
    path = tmp_path / vllm_fa3.LIBRARY
    path.parent.mkdir(parents=True)
    path.touch()
    monkeypatch.setenv("COMET_VLLM_SITE", str(tmp_path))
    monkeypatch.setattr(vllm_fa3, "load_library", lambda _path: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    yield calls
    library._destroy()


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp8", None)])
def test_flash_attention_3_is_called_as_it_is_registered(flash, name, dtype):
    dtype = dtype or torch.float8_e4m3fn
    workload = getattr(vllm_fa3, name)(SHAPE, CPU)
    out = workload.calls[1]()
    assert out.shape == (2, 4, 64) and out.dtype == torch.bfloat16
    (schedule,) = flash["get_scheduler_metadata"]
    assert schedule[:8] == (2, 1, 128, 4, 2, 64, 64, dtype)
    (operands,) = flash["fwd"]
    assert operands[1].shape == (4, PAGE, 2, 64) and operands[1].dtype == dtype
    assert operands[7].tolist() == [0, 1, 2]
    assert operands[11].tolist() == [128, 128]
    assert operands[14].flatten().sort().values.tolist() == [0, 1, 2, 3]
    assert operands[23] == pytest.approx(0.125)
    assert operands[29].numel() == 9 and operands[30] == schedule[20] == 32
    scales = operands[20:23]
    assert all(s is None for s in scales) == (name == "bf16")


def test_flash_attention_3_needs_hopper(flash, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    with pytest.raises(Unavailable, match=r"compute capability 9\.x"):
        vllm_fa3.bf16(SHAPE, CPU)


def test_turboquant_runs_without_importing_vllm(monkeypatch, tmp_path):
    operators = tmp_path / "vllm" / "v1" / "attention" / "ops"
    operators.mkdir(parents=True)
    (operators / "triton_turboquant_decode.py").write_text(TURBOQUANT, encoding="utf-8")
    stage = "from vllm.triton_utils import triton\n_fwd_kernel_stage2 = None\n"
    (operators / "triton_decode_attention.py").write_text(stage, encoding="utf-8")
    quantizer = tmp_path / vllm_turboquant.CENTROIDS
    quantizer.parent.mkdir(parents=True)
    quantizer.write_text(
        "import torch\n\n\ndef get_centroids(d, bits):\n    return torch.ones(2**bits)\n"
    )
    triton = ModuleType("triton")
    triton.language = ModuleType("triton.language")
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.language", triton.language)
    monkeypatch.setenv("COMET_VLLM_SITE", str(tmp_path))
    workload = vllm_turboquant.four_bit(SHAPE, CPU)
    assert workload.calls[0]().shape == (2, 4, 64)
    assert not [name for name in sys.modules if name.split(".")[0] == "vllm"]
    attend, _ = vllm_turboquant._operators(operators / "triton_turboquant_decode.py", quantizer)
    (operands,) = attend.__globals__["CALLS"]
    cache = operands["kv_cache"]
    assert cache.shape == (4, PAGE, 2, 64 + 6)
    norms = cache[..., 32:34].view(torch.float16)
    assert norms.min() >= 5 and norms.max() <= 15
    rotation = operands["Pi"]
    assert torch.allclose(rotation @ rotation.T, torch.eye(64), atol=1e-6)
    assert operands["key_packed_size"] == 34 and operands["norm_correction"]
