# SPDX-License-Identifier: Apache-2.0
"""Times TensorRT-LLM's GEMM kernels in TensorRT-LLM's own environment.

``python tensorrt_llm_worker.py REQUEST RESPONSE``, both JSON. It imports nothing of comet, whose
environment has another torch; ``comet.speed.backends.tensorrt_llm`` writes REQUEST, starts it and
reads RESPONSE. Called are the torch operator ``trtllm::finegrained_mixed_dtype_gemm`` (W4A16, group
128) after TensorRT-LLM's autotuner has chosen its tactic, and the SmoothQuant plugin in a network
of its own (W8A8, a scale a token and an output channel).

REQUEST: ``{format: 1, kind: w4a16|w8a8, shapes: [{m, n, k}], seed, timer: {replays, warm_up,
least_calls, longest_replay, pause, l2_multiple}}``.
RESPONSE: ``{format: 1, device, versions, results: [{m, n, k, samples | error}]}``; samples are
microseconds a call, one a graph replay.
"""

import json
import math
import sys
import time
from pathlib import Path

FORMAT = 1
GROUP = 128
ROWS, COLUMNS, TOLERANCE = 8, 64, 0.02  # of the corner that is checked


class WrongResult(Exception):
    """A kernel computed something else than the product: its time means nothing."""


def main(request_path: str, response_path: str) -> None:
    """Answer one request; what fails for one shape is its ``error`` and stops no other."""
    import torch

    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    if request["format"] != FORMAT:
        raise SystemExit(f"request has format {request['format']}; this script knows {FORMAT}")
    torch.manual_seed(request["seed"])
    make = {"w4a16": mixed_gemm, "w8a8": smooth_quant_gemm}[request["kind"]]
    results = []
    for shape in request["shapes"]:
        size = (shape["m"], shape["n"], shape["k"])
        try:
            answer = {"samples": time_calls(make(*size, request["timer"]), request["timer"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
        results.append(shape | answer)
        torch.cuda.empty_cache()
        print(f"{request['kind']} {shape}: {'error' if 'error' in answer else 'ok'}", flush=True)
    response = {
        "format": FORMAT,
        "device": torch.cuda.get_device_name(),
        "versions": versions(),
        "results": results,
    }
    Path(response_path).write_text(json.dumps(response), encoding="utf-8")


def versions() -> dict:
    """Versions of what is measured."""
    from importlib import metadata

    import torch

    found = {"torch": torch.__version__, "cuda": torch.version.cuda}
    for name in ("tensorrt_llm", "tensorrt"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def copies(bytes_each: int, timer: dict) -> int:
    """Copies of a weight that together exceed the L2 cache as often as the request says."""
    import torch

    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    return max(2, math.ceil(timer["l2_multiple"] * l2 / bytes_each) + 1)


_processed = {}


def mixed_gemm(m: int, n: int, k: int, timer: dict) -> list:
    """Calls of the W4A16 operator on rotated copies of one weight."""
    import torch
    from tensorrt_llm._torch.autotuner import autotune
    from tensorrt_llm.quantization.functional import preprocess_weights_for_mixed_gemm

    dtype = torch.float16
    if (n, k) not in _processed:  # slow, on the processor: once for all m
        _processed.clear()
        packed = torch.randint(-128, 128, (k, n // 2), dtype=torch.int8)
        codes = torch.ops.trtllm.unpack_int4_packed_tensor_to_int8(packed)
        ready = preprocess_weights_for_mixed_gemm(packed, torch.quint4x2, dtype)
        _processed[n, k] = (ready.cuda().contiguous(), codes[:, :COLUMNS].cuda())
    first, codes = _processed[n, k]
    weights = [first] + [first.clone() for _ in range(copies(n * k // 2, timer) - 1)]
    x = torch.randn(m, k, device="cuda", dtype=dtype) / math.sqrt(k)
    scales = torch.rand(k // GROUP, n, device="cuda", dtype=dtype)

    def call(weight):
        return torch.ops.trtllm.finegrained_mixed_dtype_gemm(
            input=x,
            weight=weight,
            scales=scales,
            group_size=GROUP,
            has_zero_point=False,
            output_dtype=dtype,
        )

    with torch.inference_mode(), autotune():
        call(first)
    corner = codes.float() * scales[:, :COLUMNS].float().repeat_interleave(GROUP, 0)
    check(call(first), x[:ROWS].float() @ corner)
    return [lambda w=w: call(w) for w in weights]


def smooth_quant_gemm(m: int, n: int, k: int, timer: dict) -> list:
    """Calls of the W8A8 plugin on rotated weights, which are inputs of the network."""
    import tensorrt_llm
    import torch
    from tensorrt_llm import Tensor
    from tensorrt_llm._utils import str_dtype_to_trt
    from tensorrt_llm.quantization.functional import smooth_quant_gemm as layer
    from tensorrt_llm.runtime.session import Session

    token_scale, channel_scale = torch.rand(m, 1) * 1e-2, torch.rand(1, n) * 1e-2
    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    network.plugin_config.smooth_quant_gemm_plugin = "float16"
    with tensorrt_llm.net_guard(network):
        inputs = [
            Tensor(name=name, shape=shape, dtype=str_dtype_to_trt("int8"))
            for name, shape in (("x", (m, k)), ("weight", (n, k)))
        ]
        scales = [
            tensorrt_llm.functional.constant(scale.numpy())
            for scale in (token_scale, channel_scale)
        ]
        layer(*inputs, *scales, True, True, "float16").mark_output("out", "float16")
    config = builder.trt_builder.create_builder_config()
    engine = builder.trt_builder.build_serialized_network(network.trt_network, config)
    session = Session.from_serialized_engine(engine)
    options = {"device": "cuda", "dtype": torch.int8}
    x = torch.randint(-127, 128, (m, k), **options)
    weights = [torch.randint(-127, 128, (n, k), **options) for _ in range(copies(n * k, timer))]
    out = torch.empty(m, n, device="cuda", dtype=torch.float16)

    def call(weight):
        stream = torch.cuda.current_stream().cuda_stream
        if not session.run({"x": x, "weight": weight}, {"out": out}, stream):
            raise RuntimeError("TensorRT refused to run the network")
        return out

    corner = x[:ROWS].float() @ weights[0][:COLUMNS].float().t()
    corner *= token_scale[:ROWS].cuda() * channel_scale[:, :COLUMNS].cuda()
    check(call(weights[0]), corner)
    return [lambda w=w: call(w) for w in weights]


def check(out, corner) -> None:
    """Compare a corner of the result with the product in fp32."""
    import torch

    torch.cuda.synchronize()
    found = out[: corner.shape[0], : corner.shape[1]].float()
    error = ((found - corner).norm() / corner.norm()).item()
    if not error < TOLERANCE:
        raise WrongResult(f"relative error of the result is {error:.3g}; at most {TOLERANCE}")


def time_calls(calls: list, timer: dict) -> list:
    """Microseconds a call: replays of one CUDA graph, as ``comet.speed.timer`` takes them."""
    import torch

    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    calls[-1]()
    torch.cuda.synchronize()
    wanted = min(timer["least_calls"], int(timer["longest_replay"] / (time.perf_counter() - start)))
    rounds = max(1, math.ceil(wanted / len(calls)))
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    torch.cuda.synchronize()
    time.sleep(timer["pause"])
    for _ in range(timer["warm_up"]):
        graph.replay()
    samples = []
    for _ in range(timer["replays"]):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3 / (rounds * len(calls)))
    return samples


if __name__ == "__main__":
    main(*sys.argv[1:])
