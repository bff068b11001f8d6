# SPDX-License-Identifier: Apache-2.0
"""COMET's GEMM backends on the CPU path of the operators: every mode, every way to quantize."""

from types import SimpleNamespace

import pytest
import torch

from comet.kernels.w4ax_call import Plan
from comet.speed.backends import GemmShape, Unavailable, Unsupported, comet, comet_sm80
from comet.speed.cases import MODES, jobs_of

CPU = torch.device("cpu")
SHAPE = {"m": 5, "n": 64, "k": 300, "int4_share": 0.75}


@pytest.fixture(autouse=True)
def pretend_hopper(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for module in (comet, comet_sm80):
        monkeypatch.setattr(module, "copies_past_l2", lambda size, device: 2)
    monkeypatch.setattr(comet, "plan_of", lambda *_: Plan("T8x1"))


def run(workload) -> dict[str, tuple]:
    """Shape of what each metric's first and last call gives; an operand's is that of its codes."""
    found = {}
    for metric, calls in {"time": workload.calls, **workload.besides}.items():
        for call in (calls[0], calls[-1]):
            out = call()
            found[metric] = tuple(getattr(out, "operand", out).shape)
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("layer", "ways"),
    [
        ("o", {"quantization"}),
        ("qkv", {"quantization", "norm_quantization"}),
        ("gate_up", {"quantization", "norm_quantization"}),
        ("down", {"quantization", "silu_quantization"}),
    ],
)
def test_every_mode_and_way_runs(mode, layer, ways):
    workload = comet.w4ax(GemmShape.of(SHAPE | {"layer": layer} | MODES[mode]), CPU)
    found = run(workload)
    wanted = {f"time_with_{way}" for way in ways} | {f"{way}_time" for way in ways}
    wanted |= {"time", "time_without_overlap"}
    assert set(found) == wanted
    assert {found[metric] for metric in found if metric.startswith("time")} == {(5, 64)}
    assert {found[f"{way}_time"] for way in ways} == {(3, 8, 128)}
    assert workload.details["int8_blocks"] == 1
    assert ("plan" in workload.details) == (mode != "token_block")


def test_layers_too_wide_to_fuse_are_quantized_alone():
    wide = SHAPE | {"m": 2, "k": 49152, "layer": "down"}  # OPT-175B's
    found = run(comet.w4ax(GemmShape.of(wide), CPU))
    assert "quantization_time" in found and "silu_quantization_time" not in found
    with pytest.raises(Unsupported, match="at most 49152 input channels, not 49280"):
        comet.w4ax(GemmShape.of(wide | {"k": 49280}), CPU)


def test_the_control_has_int8_blocks_only():
    assert comet.w4a8(GemmShape.of(SHAPE), CPU).details["int8_blocks"] == 3


def test_scales_that_no_kernel_takes_are_unsupported():
    with pytest.raises(Unsupported, match="token_block goes with group_fp"):
        comet.w4ax(GemmShape.of(SHAPE | {"act_scale": "token_block"}), CPU)


def test_a_variant_is_timed_from_its_own_library(monkeypatch, tmp_path):
    monkeypatch.setenv("COMET_LIBRARY", str(tmp_path / "lib.so"))
    shape = GemmShape.of(SHAPE | {"variant": "naive-conversion"})
    with pytest.raises(Unavailable, match="naive-conversion/lib.so does not exist; build it with"):
        comet.w4ax(shape, CPU)
    (tmp_path / "variants" / "naive-conversion").mkdir(parents=True)
    (tmp_path / "variants" / "naive-conversion" / "lib.so").touch()
    workload = comet.w4ax(shape, CPU)
    assert workload.besides == {}
    for call in workload.calls:
        call()


def test_the_sm80_kernel_elsewhere_carries_its_caution(monkeypatch, tmp_path):
    monkeypatch.setenv("COMET_LIBRARY", str(tmp_path / "lib.so"))
    (tmp_path / "lib.so").touch()
    library = SimpleNamespace(architectures=["80", "90a"])
    monkeypatch.setattr(comet_sm80, "load_for", lambda device: library)
    monkeypatch.setattr(comet_sm80, "instances", lambda _: [SimpleNamespace(interleaved=True)])
    shape = GemmShape.of(jobs_of("ablations", [16])[0].case | SHAPE)
    workload = comet_sm80.w4ax(shape, CPU)
    assert run(workload) == {"time": (5, 64)}
    assert "says nothing about an A100" in workload.details["caution"]
    with pytest.raises(Unsupported, match="default mode only"):
        comet_sm80.w4ax(GemmShape.of(SHAPE | {"act_scale": "token"}), CPU)
    library.architectures = ["90a"]
    with pytest.raises(Unavailable, match="has no sm_80 code"):
        comet_sm80.w4ax(shape, CPU)
