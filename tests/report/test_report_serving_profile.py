# SPDX-License-Identifier: Apache-2.0
"""The table of where a served step's time goes."""

import json

import pytest

from comet.measurements import REPOSITORY
from comet.report.serving_profile import IDLE, OTHERS, PARTS, by_part, part_of, profile_summary

NAMES = {
    "void comet::sm90::w4ax_kernel<comet::sm90::Instance<256, 2> >(GemmParams)": "W4Ax GEMM",
    "void comet::kv4::decode_kernel<comet::kv4::Instance<Bf16, 128, 1> >(DecodeParams)": (
        "decode attention over the 4-bit cache"
    ),
    "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::Main> >": (
        "flash attention (with KV4: of prompts)"
    ),
    "void comet::quantize_kernel<__nv_bfloat16, comet::SiluSource, 8>(QuantizeParams)": (
        "quantization of activations, with norms and SiLU"
    ),
    "void comet::kv4::append_kernel<comet::kv4::Bf16, 128>(AppendParams)": (
        "append to the 4-bit cache"
    ),
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT": "other GEMM (with W4Ax: the output head)",
    "void marlin::Marlin<__nv_bfloat16>(int4 const*)": "other GEMM (with W4Ax: the output head)",
    "triton_poi_fused_0": "compiled operators (rotary embedding and others)",
    "_gumbel_sample_kernel": OTHERS,
}
KERNELS = {
    "load": {"input_tokens": 1024, "requests": 256},
    "wall_us": {"prefill": 3.4e6, "decode_step": 7900.0},
    "gpu_us": {"prefill": 3.0e6, "decode_step": 8000.0},
    "idle_us": {"prefill": 1.0e6, "decode_step": -40.0},
    "prefill": [{"kernel": "w4ax", "calls": 1, "us": 2.0e6}],
    "decode_step": [
        {"kernel": "w4ax_a", "calls": 1, "us": 3000.0},
        {"kernel": "w4ax_b", "calls": 1, "us": 1000.0},
        {"kernel": "triton_poi_fused_0", "calls": 1, "us": 500.0},
    ],
}


def record(start: str, kernels: dict | None) -> dict:
    return {
        "backend": "vllm-comet",
        "case": {"model": "LLaMA-3-8B"},
        "environment": {"device": "NVIDIA H200"},
        "method": {"kernels": kernels},
        "provenance": {"start": start},
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_belongs_to_a_part(name):
    assert part_of(name) == NAMES[name]


def test_parts_add_up_to_the_gpu_time():
    times = by_part(KERNELS, "decode_step")
    assert times["W4Ax GEMM"] == 4000
    assert times[OTHERS] == 3500  # of which the record lists nothing
    assert times[IDLE] == 0
    assert sum(times.values()) == KERNELS["gpu_us"]["decode_step"]


def test_the_newest_profile_is_shown():
    other = KERNELS | {"prefill": [{"kernel": "flash", "calls": 1, "us": 9.0}]}
    found = profile_summary([record("2026-2", KERNELS), record("2026-1", other), record("3", None)])
    assert [row["Part"] for row in found["rows"]] == [*PARTS, OTHERS, IDLE]
    first = found["rows"][0]
    assert (first["Prefill, ms"], first["Prefill, share"]) == ("2000.00", "50.0%")
    assert (first["Decode step, ms"], first["Decode step, share"]) == ("4.00", "50.0%")
    assert "NVIDIA H200" in found["sentence"]
    assert "3,400 ms" in found["sentence"] and "7.90 ms" in found["sentence"]
    assert profile_summary([record("1", None)])["rows"] == []


def test_every_large_kernel_of_the_reference_profile_is_known():
    path = REPOSITORY / "results" / "h200" / "serving-profile.jsonl"
    (profiled,) = [
        r["method"]["kernels"]
        for r in map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if r["metric"] == "tokens_per_s"
    ]
    for phase in ("prefill", "decode_step"):
        times = by_part(profiled, phase)
        assert times[OTHERS] < 0.04 * sum(times.values())
