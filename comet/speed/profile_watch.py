# SPDX-License-Identifier: Apache-2.0
"""NVML readings while a GEMM runs over and over."""

import gc
import time

import torch

from comet.measurements import Measurement
from comet.speed import nvml
from comet.speed.backends import GemmShape, Unavailable, backend_of
from comet.speed.gpu_environment import gpu_environment
from comet.speed.profile import WATCHED, WATCHED_SIGN, absent
from comet.speed.timer import capture

# Calls a graph holds at least, and replays that may wait in the queue of the GPU.
LEAST_CALLS, QUEUED = 64, 4
NOT_TOLD = "this GPU or its driver does not tell it through NVML"
# Share of the readings that is left out at the start, while clock and power still move.
SETTLING = 0.3


def device_environment() -> dict:
    """Environment of records of the current GPU."""
    return gpu_environment(torch.device("cuda", torch.cuda.current_device()))


def watch(item: tuple[dict, str], seconds: float, seed: int, source: dict) -> list[Measurement]:
    """The metrics of ``WATCHED`` for one gemm case and backend, or why there are none."""
    case, backend = item
    torch.manual_seed(seed)
    device = torch.device("cuda", torch.cuda.current_device())
    try:
        workload = backend_of(backend).load(GemmShape.of(case), device)
        seen, calls = _looped(workload.calls, seconds)
    except Unavailable as missing:
        return [absent(item, WATCHED_SIGN, str(missing), source)]
    except (RuntimeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return [absent(item, WATCHED_SIGN, reason, source, "failed")]
    finally:
        gc.collect()
        torch.cuda.empty_cache()
    return of_readings(item, seen, calls, seconds, source)


def _looped(calls, seconds: float) -> tuple[nvml.Watch, int]:
    """Replay a graph of the calls for so long; readings, and the number of calls in that time."""
    graph, count = capture(calls, LEAST_CALLS)
    queue: list[torch.cuda.Event] = []
    replays, end = 0, time.monotonic() + seconds
    with nvml.Watch() as seen:
        while time.monotonic() < end:
            graph.replay()
            replays += 1
            queue.append(torch.cuda.Event())
            queue[-1].record()
            if len(queue) > QUEUED:
                queue.pop(0).synchronize()
        torch.cuda.synchronize()
    return seen, replays * count


def of_readings(item, seen: nvml.Watch, calls: int, seconds: float, source: dict):
    """Records of what a watch saw, without its first readings."""
    if seen.missing:
        return [absent(item, WATCHED_SIGN, seen.missing, source)]
    case, backend = item
    settled = {name: values[int(len(values) * SETTLING) :] for name, values in seen.samples.items()}
    masks = [int(mask) for mask in settled.pop("throttle_reasons", [])]
    slowed = sum(bool(mask & nvml.SLOWED) for mask in masks)
    method = {
        "tool": f"NVML, read in a thread while a CUDA graph of the kernel ran for {seconds} s",
        "left_out": f"the first {SETTLING:.0%} of the readings",
        "calls": calls,
        "throttle_reasons": sorted({name for m in masks for name in nvml.reason_names(m)}),
        "readings_slowed": f"{slowed} of {len(masks)}",
        "not_included": "activation quantization, launch from the host",
    }
    return [
        Measurement("profile", case, name, unit, backend, settled[name], None, method, **source)
        if settled.get(name)
        else absent(item, name, NOT_TOLD, source)
        for name, unit in WATCHED.items()
    ]
