# SPDX-License-Identifier: Apache-2.0
"""Measure which W4Ax plan is fastest for a set of layers, and write ``plan_table.py``.

``python -m comet.speed.tune_sm90 --shapes 12288x4096 4096x14336 --m 1 16 64`` on an idle GPU. Every
candidate is timed briefly without overlapping launches, the best of them with every way to
overlap, and the best few of each again in turns, so that a drifting clock hits all of them. The
table is written after every layer and batch: a run that is stopped keeps what it found. About two
seconds a layer and batch on an H200.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from comet.files import write_text
from comet.formats.blocks import BLOCK
from comet.kernels import plan_table
from comet.kernels.layout_sm90 import TILE_BYTES, tile_rows
from comet.kernels.library import load_for
from comet.kernels.operands import padded_tokens
from comet.kernels.plan_sm90 import BUCKETS, CLUSTER_FILL, bucket_of
from comet.kernels.w4ax_call import Instance, Plan, instances, w4ax
from comet.speed.timer import TimerOptions, copies_past_l2, time_graph
from comet.speed.tune import run_tuner

BRIEF = TimerOptions(replays=5, warm_up=1, longest_replay=0.004, pause=0.005)
CAREFUL = TimerOptions(replays=11, warm_up=2, longest_replay=0.01)
OVERLAPPED = 8  # plans that are tried with overlapping launches
FINALISTS = 4
ROUNDS = 3
INT8_SHARE = 0.16
PREFETCHES = (2, 8)
HEADER = '''# SPDX-License-Identifier: Apache-2.0
"""Measured plans: (M up to, 64-channel rows, K blocks, may overlap launches) -> plan.

Written by ``python -m comet.speed.tune_sm90`` on one {device}.
"""

from comet.kernels.w4ax_call import Plan

TABLE_SMS = {sms}
TABLE: dict[tuple[int, int, int, bool], Plan] = {{
{rows}}}
'''


def candidates(
    m: int, n: int, blocks: int, sms: int, available: dict[str, Instance]
) -> Iterator[Plan]:
    """Plans worth timing: instances that fit M, splits that run at once, shares that balance.

    Persistent kernels of several warpgroups are tried in step and staggered: with a tile after the
    other, epilogues that do not coincide leave the tensor cores less idle.
    """
    bucket = bucket_of(m)
    for name, instance in available.items():
        if not min(bucket // 2, 128) <= instance.tokens <= max(16, bucket):
            continue
        tiles, slots = instance.tiles(m, n), sms * instance.residency
        if not instance.stream:
            for split, fill in CLUSTER_FILL.items():
                at_once = split == 1 or tiles * split <= slots * fill
                if at_once and blocks >= 2 * split:
                    yield Plan(name, split=split)
            continue
        for cut in _cuts(instance, tiles, blocks, sms, slots):
            yield cut
            deepest = (instance.stages - 1) // max(1, instance.warpgroups - 1)
            for stagger in sorted({(deepest + 1) // 2, deepest}) if cut.grid < tiles else ():
                yield replace(cut, stagger=stagger)


def _cuts(instance: Instance, tiles: int, blocks: int, sms: int, slots: int) -> Iterator[Plan]:
    """Ways to deal tiles out to persistent thread blocks, whole or some of them cut along K."""
    for grid in sorted({sms, slots}):
        rest = tiles % grid
        yield Plan(instance.name, grid=min(grid, tiles))
        for shared in sorted({rest, rest + grid if tiles >= grid else tiles}):
            if shared * blocks // 2 >= grid:
                yield Plan(instance.name, grid=grid, shared_tiles=shared)


class Layer:
    """Random operands of one layer, weights rotated past the L2 cache."""

    def __init__(self, n: int, k: int, device: torch.device) -> None:
        self.n, self.blocks, self._device = n, k // BLOCK, device
        shape = (tile_rows(n), self.blocks, TILE_BYTES)
        self._tiles = [
            torch.randint(0, 256, shape, device=device, dtype=torch.uint8)
            for _ in range(copies_past_l2(n * k // 2, device))
        ]
        self._channel_scale = torch.rand(n, device=device)

    def set_tokens(self, m: int) -> None:
        """Draw activations of m tokens."""
        shape = (self.blocks, padded_tokens(m), BLOCK)
        self._operand = torch.randint(-126, 127, shape, device=self._device, dtype=torch.int8)
        self._scales = torch.rand(2, m, device=self._device)
        self._sums = torch.zeros(2, m, device=self._device, dtype=torch.int32)
        self._out = torch.empty(m, self.n, device=self._device, dtype=torch.bfloat16)

    def time(self, plan: Plan, options: TimerOptions) -> float:
        """Median microseconds of a call."""
        int4_blocks = self.blocks - round(INT8_SHARE * self.blocks)
        parts = (self._operand, self._scales, self._sums)
        calls = [
            lambda t=t: w4ax(*parts, t, self._channel_scale, None, int4_blocks, self._out, plan)
            for t in self._tiles
        ]
        return statistics.median(time_graph(calls, options))


def best_plans(layer: Layer, m: int, sms: int, available) -> dict[bool, tuple[Plan, float]]:
    """The fastest plan and its time, without and with overlapping launches allowed."""
    layer.set_tokens(m)
    plain = _ranked(layer, list(candidates(m, layer.n, layer.blocks, sms, available)))
    overlapping = [
        replace(plan, dependent_launch=True, prefetch=prefetch, early_trigger=early)
        for plan in plain[:OVERLAPPED]
        for prefetch in PREFETCHES
        for early in (False, True)
    ]
    found = {}
    for allowed, plans in ((False, plain), (True, _ranked(layer, overlapping))):
        final = plans[:FINALISTS]
        rounds = [[layer.time(plan, CAREFUL) for plan in final] for _ in range(ROUNDS)]
        times = [statistics.median(each) for each in zip(*rounds, strict=True)]
        best = min(range(len(final)), key=times.__getitem__)
        found[allowed] = (final[best], times[best])
    if found[False][1] <= found[True][1]:
        found[True] = found[False]
    return found


def _ranked(layer: "Layer", plans: list[Plan]) -> list[Plan]:
    """Plans by their brief time, fastest first."""
    brief = sorted((layer.time(plan, BRIEF), number) for number, plan in enumerate(plans))
    return [plans[number] for _, number in brief]


def write_table(table: dict, device: str, sms: int, path: Path) -> None:
    """Write the table as Python source."""
    rows = "".join(f"    {key}: {_source(plan)},\n" for key, plan in sorted(table.items()))
    write_text(path, HEADER.format(device=device, sms=sms, rows=rows))


def _source(plan: Plan) -> str:
    shown = ((name, value) for name, value in vars(plan).items() if name != "instance")
    defaults = vars(Plan(""))
    changed = [f"{name}={value}" for name, value in shown if value != defaults[name]]
    return f"Plan({', '.join([repr(plan.instance).replace(chr(39), chr(34)), *changed])})"


def tune(options: argparse.Namespace) -> None:
    """Tune the layers of the command line and merge them into the table."""
    device = torch.device("cuda", torch.cuda.current_device())
    properties = torch.cuda.get_device_properties(device)
    available, sms = instances(load_for(device)), properties.multi_processor_count
    table = dict(plan_table.TABLE) if sms == plan_table.TABLE_SMS else {}
    end = time.monotonic() + options.seconds
    for n, k in (map(int, shape.split("x")) for shape in options.shapes):
        layer = Layer(n, k, device)
        for m in options.m:
            if time.monotonic() > end:
                print(f"{n}x{k} M={m}: not tuned, {options.seconds:.0f} s are over", flush=True)
                continue
            for allowed, (plan, best) in best_plans(layer, m, sms, available).items():
                table[(bucket_of(m), tile_rows(n), layer.blocks, allowed)] = plan
                print(f"{n}x{k} M={m} overlap={allowed}: {best:.1f} us {_source(plan)}", flush=True)
            write_table(table, properties.name, sms, options.out)
        del layer
        torch.cuda.empty_cache()


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m comet.speed.tune_sm90", description=__doc__)
    parser.add_argument("--shapes", nargs="+", required=True, metavar="NxK")
    parser.add_argument("--m", type=int, nargs="+", default=[*BUCKETS, 2 * BUCKETS[-1]])
    parser.add_argument("--out", type=Path, default=Path(plan_table.__file__))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    run_tuner(parser, tune, arguments)


if __name__ == "__main__":
    main()
