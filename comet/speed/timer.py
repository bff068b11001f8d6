# SPDX-License-Identifier: Apache-2.0
"""Time of GPU work: one CUDA graph, inputs rotated past the L2 cache, medians of replays."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

L2_MULTIPLE = 3
PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class TimerOptions:
    """How long and how carefully to measure.

    Attributes:
        replays: timed graph replays, one sample each.
        warm_up: replays before them.
        least_calls: calls a graph holds at least, so that one replay is long against its start.
        longest_replay: seconds that a replay may take before it holds fewer calls, down to one a
            weight copy: long kernels need no crowd, and throttle in one.
        pause: seconds of rest before each measurement; large integer kernels back to back throttle.
    """

    replays: int = 15
    warm_up: int = 3
    least_calls: int = 24
    longest_replay: float = 0.02
    pause: float = PAUSE_SECONDS

    def method(self) -> dict:
        """The description that a measurement carries."""
        return {
            "timer": "CUDA events around replays of one CUDA graph",
            "warm_up": self.warm_up,
            "repeats": self.replays,
            "l2_state": f"cold: weights rotate past {L2_MULTIPLE} x L2",
            "least_calls": self.least_calls,
            "longest_replay_seconds": self.longest_replay,
            "pause_seconds": self.pause,
        }


DEFAULT = TimerOptions()


def copies_past_l2(bytes_each: int, device: torch.device | None = None) -> int:
    """Copies of an input of this size that together exceed ``L2_MULTIPLE`` times the L2 cache."""
    l2 = torch.cuda.get_device_properties(device).L2_cache_size
    return max(2, math.ceil(L2_MULTIPLE * l2 / max(1, bytes_each)) + 1)


def time_graph(
    calls: Sequence[Callable[[], object]], options: TimerOptions = DEFAULT
) -> list[float]:
    """Time calls in turn.

    Args:
        calls: the same work on rotated inputs; each allocates nothing that outlives it.

    Returns:
        Microseconds a call, one sample a replay.
    """
    wanted = options.longest_replay / max(_seconds_a_call(calls), 1e-9)
    graph, count = capture(calls, min(options.least_calls, int(wanted)))
    torch.cuda.synchronize()
    time.sleep(options.pause)
    for _ in range(options.warm_up):
        graph.replay()
    samples = []
    for _ in range(options.replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e3 / count)
    return samples


def _seconds_a_call(calls: Sequence[Callable[[], object]]) -> float:
    """About how long a call takes, its launch included."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    calls[0]()
    start.record()
    calls[-1]()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3


def capture(
    calls: Sequence[Callable[[], object]], least_calls: int
) -> tuple[torch.cuda.CUDAGraph, int]:
    """One CUDA graph of whole rounds of the calls, and how many calls it holds."""
    rounds = max(1, math.ceil(least_calls / len(calls)))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls[:2]:  # lazy initialisation stays outside the graph
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    return graph, rounds * len(calls)
