# SPDX-License-Identifier: Apache-2.0
"""Measure which plan of KV4 decode attention is fastest, and write ``plan_kv4_table.py``.

``python -m comet.speed.tune_kv4`` times the cases of ``comet bench attention``;
``--cases 64x4096x32x8 --dim 128`` others. Every plan is timed briefly, the best few again in turns,
so that a drifting clock hits all of them. ``--dependent`` overlaps launches; ``--mixed`` draws each
length between 1 and the context and ``--only 4,3,2`` times one plan (warps, stages, thread blocks
an SM): both write nothing.
"""

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

import torch

from comet.files import write_text
from comet.formats.kv4 import PAGE, page_bytes
from comet.kernels import plan_kv4_table
from comet.kernels.kv4 import kv4_decode
from comet.kernels.kv4_cache import PagedKV4Cache
from comet.kernels.plan_kv4 import MAX_STAGES, Gpu, Plan, key_of, most_warps, thread_blocks
from comet.speed.attention_cases import REFERENCE, attention_cases
from comet.speed.timer import TimerOptions, copies_past_l2, time_graph
from comet.speed.tune import run_tuner

BRIEF = TimerOptions(replays=5, warm_up=1, pause=0.002, least_calls=8)
CAREFUL = TimerOptions(replays=11, warm_up=2, pause=0.005, least_calls=8)
FINALISTS = 3
WARPS = (1, 2, 3, 4, 6, 8, 12)
HEADER = '''# SPDX-License-Identifier: Apache-2.0
"""Measured plans of KV4 decode: (D, tiles of 8 query heads, log2 of the batch's pages, log2 of a
sequence's pages) -> (warps, stages, thread blocks an SM).

Written by ``python -m comet.speed.tune_kv4`` on one {device}.
"""

TABLE: dict[tuple[int, int, int, int], tuple[int, int, int]] = {{
{rows}}}
'''


def candidates(head_dim: int, group: int, gpu: Gpu) -> Iterator[tuple[int, int, int]]:
    """Warps, stages and thread blocks an SM that fill an SM's shared memory or nearly so."""
    for warps in WARPS:
        for per_sm in range(1, most_warps(group) // warps + 1):
            if warps * per_sm < 4:
                continue
            fitting = [
                stages
                for stages in range(2, MAX_STAGES + 1)
                if gpu.fits(warps, stages, per_sm, head_dim, group)
            ]
            if fitting and warps * per_sm * fitting[-1] >= 12:
                yield warps, fitting[-1], per_sm


class Case:
    """Caches of one case, rotated past the L2 cache."""

    def __init__(
        self,
        batch: int,
        context: int,
        heads: int,
        kv_heads: int,
        dim: int,
        device: torch.device,
        mixed: bool = False,
    ) -> None:
        pages = -(-context // PAGE)
        lengths = [context] * batch
        if mixed:
            drawn = torch.randint(1, context + 1, (batch,), generator=torch.Generator())
            lengths = drawn.tolist()
        self.key = key_of(batch, kv_heads, heads // kv_heads, dim, pages)
        self.items = batch * kv_heads
        used = sum(-(-length // PAGE) for length in lengths)
        self.bytes = used * kv_heads * page_bytes(dim)
        self._query = torch.randn(batch, heads, dim, device=device).bfloat16()
        self._batches = []
        for seed in range(copies_past_l2(self.bytes, device)):
            cache = PagedKV4Cache(used, kv_heads, dim, batch, context, torch.bfloat16, device)
            self._batches.append(cache.batch(cache.fill_random(lengths, seed)))

    def time(self, plan: Plan, dependent: bool, options: TimerOptions) -> float:
        """Median microseconds of a call."""
        calls = [
            lambda b=b: kv4_decode(self._query, *b, plan=plan, dependent_launch=dependent)
            for b in self._batches
        ]
        return statistics.median(time_graph(calls, options))


def best_of(case: Case, plans: list[tuple[int, int, int]], sms: int, dependent: bool):
    """The fastest plans with their times, best first."""

    def measured(plan: tuple[int, int, int], options: TimerOptions) -> float:
        warps, stages, per_sm = plan
        blocks = thread_blocks(per_sm * sms, case.items)
        return case.time(Plan(warps, stages, blocks), dependent, options)

    brief = sorted((measured(plan, BRIEF), plan) for plan in plans)
    final = [plan for _, plan in brief[:FINALISTS]]
    rounds = [[measured(plan, CAREFUL) for plan in final] for _ in range(2)]
    times = [min(pair) for pair in zip(*rounds, strict=True)]
    return sorted(zip(times, final, strict=True))


def write_table(table: dict, device: str, path: Path) -> None:
    """Write the table as Python source."""
    rows = "".join(f"    {key}: {plan},\n" for key, plan in sorted(table.items()))
    write_text(path, HEADER.format(device=device, rows=rows))


def _cases(options: argparse.Namespace) -> list[tuple[int, int, int, int, int]]:
    if options.cases:
        return [(*map(int, case.split("x")), options.dim) for case in options.cases]
    found = {
        tuple(case[name] for name in ("batch", "context", "heads", "kv_heads", "head_dim")): None
        for model in options.models
        for case in attention_cases(model)
    }
    return list(found)


def tune(options: argparse.Namespace) -> None:
    """Tune the cases of the command line and merge them into the table."""
    device = torch.device("cuda", torch.cuda.current_device())
    gpu, name = Gpu.of(device), torch.cuda.get_device_name(device)
    table = dict(plan_kv4_table.TABLE)
    for batch, context, heads, kv_heads, dim in _cases(options):
        case = Case(batch, context, heads, kv_heads, dim, device, options.mixed)
        plans = list(candidates(dim, heads // kv_heads, gpu))
        if options.only:
            plans = [tuple(map(int, options.only.split(",")))]
        found = best_of(case, plans, gpu.sms, options.dependent)
        shown = ", ".join(f"{plan} {time:.1f}" for time, plan in found)
        rate = case.bytes / found[0][0] / 1e6
        print(
            f"{batch}x{context}x{heads}x{kv_heads}x{dim}: {rate:.2f} TB/s, us: {shown}", flush=True
        )
        table[case.key] = found[0][1]
        del case
        torch.cuda.empty_cache()
        if not options.only and not options.mixed:
            write_table(table, name, options.out)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m comet.speed.tune_kv4", description=__doc__)
    parser.add_argument("--cases", nargs="+", metavar="BATCHxCONTEXTxHEADSxKVHEADS")
    parser.add_argument("--models", nargs="+", default=list(REFERENCE))
    parser.add_argument("--dim", type=int, default=128, help="head dimension of --cases")
    parser.add_argument("--dependent", action="store_true")
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--only", metavar="WARPS,STAGES,BLOCKS_AN_SM")
    parser.add_argument("--out", type=Path, default=Path(plan_kv4_table.__file__))
    run_tuner(parser, tune, arguments)


if __name__ == "__main__":
    main()
