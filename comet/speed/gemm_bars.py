# SPDX-License-Identifier: Apache-2.0
"""What the GEMM kernel reaches on an H200: geometric means over the six reference layers.

Floors and ceilings are physical limits of one H200: bytes moved at the bandwidth that was seen, and
products at the data sheet's rates.
"""

import statistics
from collections import defaultdict
from dataclasses import dataclass

from comet.speed.cases import BASELINE, REFERENCE_BACKENDS, REFERENCE_LAYERS, is_default

OURS, CONTROL = "comet-w4ax", "comet-w4a8"
RIVALS = tuple(name for name in REFERENCE_BACKENDS if name not in (BASELINE, OURS, CONTROL))
# m up to -> (must, goal) of the speed-up over cuBLAS, (must, goal) of that over the best rival.
BARS = {
    16: ((2.9, 3.5), (1.4, 1.4)),
    64: ((2.7, 3.3), (1.4, 1.4)),
    128: ((2.2, 2.8), (1.25, 1.25)),
    256: ((1.7, 1.95), (1.03, 1.03)),
    512: ((1.75, 2.0), (0.97, 1.0)),
    4096: ((1.8, 2.0), (0.97, 1.0)),
}
MEAN_OF, MEAN_BARS = (16, 64, 256), (2.4, 2.88)  # the goal is the paper's number on an A100
SEEN_BYTES_PER_US = 4.65e6  # reading, large
LAUNCH_US = 2.1  # of a kernel that does not overlap the one before it
SHEET_BYTES_PER_US = 4.8e6
BF16_PER_US, INT8_PER_US = 989e6, 1979e6  # operations, a product counts two
WEIGHT_BYTES = 4224 / 8192  # of one weight, scales included


@dataclass(frozen=True)
class BatchRow:
    """Geometric means over the six layers at one batch, cuBLAS in bf16 = 1.

    Attributes:
        m: batch.
        ratio: W4Ax, launches overlapped.
        without_overlap: the same without; None where it was not measured.
        control: W4A8 by the same kernel; None where it was not measured.
        with_quantization: W4Ax and the quantization of its activations; or None.
        floor_overlapped: share that W4Ax reaches of the floor by memory traffic.
        floor: the same without overlap, the launch being part of the floor; or None.
        ceiling: the largest ratio that the limits of the GPU allow if cuBLAS reaches its own.
        rival, rival_ratio: the fastest rival by its mean, and that mean; None without rivals.
        missing: rivals and layers without an ok record in the run of ours.
        runs: number of different runs that the row is from.
    """

    m: int
    ratio: float
    without_overlap: float | None
    control: float | None
    with_quantization: float | None
    floor_overlapped: float
    floor: float | None
    ceiling: float
    rival: str | None
    rival_ratio: float | None
    missing: tuple[str, ...]
    runs: int

    @property
    def over_rival(self) -> float | None:
        """Speed-up over the fastest rival."""
        return self.ratio / self.rival_ratio if self.rival_ratio else None

    @property
    def counts(self) -> bool:
        """Whether every rival was measured beside it in one run."""
        return not self.missing and self.runs == 1

    @property
    def verdict(self) -> str:
        """What of the bars is reached, or why the row does not count."""
        (must, goal), (rival_must, rival_goal) = _bars(self.m)
        above = " (above the ceiling: cuBLAS is slower than its own limit)" * self.is_above
        if not self.counts:
            return f"does not count: {self._why()}{above}"
        over = self.over_rival or 0
        if self.ratio >= goal and over >= rival_goal:
            return f"goal{above}"
        failed = [f"{must} over cuBLAS"] * (self.ratio < must)
        failed += [f"{rival_must} over the best rival"] * (over < rival_must)
        return f"{'missed: ' + ', '.join(failed) if failed else 'must'}{above}"

    @property
    def is_above(self) -> bool:
        """Whether the ratio is larger than the limits allow."""
        return self.ratio > self.ceiling

    def _why(self) -> str:
        return f"{', '.join(self.missing)} missing" if self.missing else f"from {self.runs} runs"


def _bars(m: int) -> tuple[tuple[float, float], tuple[float, float]]:
    return next((bars for most, bars in BARS.items() if m <= most), BARS[4096])


def floor_us(case: dict) -> float:
    """Least time of W4Ax by memory traffic: weights, int8 activations, 16-bit results."""
    m, n, k = (case[name] for name in "mnk")
    return (n * k * WEIGHT_BYTES + m * k + 2 * m * n) / SEEN_BYTES_PER_US


def ceiling(case: dict) -> float:
    """Largest speed-up over bf16 that data-sheet rates allow."""
    m, n, k = (case[name] for name in "mnk")
    bf16 = max(2 * (n * k + m * k + m * n) / SHEET_BYTES_PER_US, 2 * m * n * k / BF16_PER_US)
    moved = n * k * WEIGHT_BYTES + m * k + 2 * m * n
    return bf16 / max(moved / SHEET_BYTES_PER_US, 2 * m * n * k / INT8_PER_US)


def batch_rows(records: list[dict]) -> list[BatchRow]:
    """One row for each batch at which all six layers have times of W4Ax and of cuBLAS.

    Args:
        records: measurements as dictionaries; others than the default mode are passed over. Where
            layers of a batch were measured in several runs, that with most of them counts.
    """
    times = _times(records)
    rows = []
    for m in sorted(times):
        layers = [times[m].get(layer) for layer in REFERENCE_LAYERS]
        if all(layers):
            rows.append(_row(m, layers))
    return rows


def _times(records: list[dict]) -> dict[int, dict[tuple, dict]]:
    """m -> (model, layer) -> ``case``, ``run`` and (backend, metric) -> median of the best run."""
    found: dict[int, dict] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for record in records:
        case = record["case"]
        layer = (case.get("model"), case.get("layer"))
        if record["kind"] != "gemm" or record["status"] != "ok" or layer not in REFERENCE_LAYERS:
            continue
        if is_default(case):
            run = record["provenance"].get("run_id")
            entry = found[case["m"]][run][layer]
            entry |= {"case": case, "run": run}
            entry[record["backend"], record["metric"]] = record["median"]
    return {m: _best_of(runs) for m, runs in found.items()}


def _best_of(runs: dict[str, dict[tuple, dict]]) -> dict[tuple, dict]:
    """(model, layer) -> what one run has of it, the fullest run before the others."""
    needed = ((OURS, "time"), (BASELINE, "time"))
    best: dict[tuple, dict] = {}
    for layers in sorted(runs.values(), key=lambda run: -sum(map(len, run.values()))):
        for layer, entry in layers.items():
            if all(name in entry for name in needed):
                best.setdefault(layer, entry)
    return best


def _row(m: int, layers: list[dict]) -> BatchRow:
    def mean(name: str, metric: str = "time") -> float | None:
        if not all((name, metric) in layer for layer in layers):
            return None
        return statistics.geometric_mean(
            layer[BASELINE, "time"] / layer[name, metric] for layer in layers
        )

    rivals = {name: value for name in RIVALS if (value := mean(name))}
    best = max(rivals, key=rivals.get, default=None)

    def floor(metric: str, launch: float) -> float | None:
        if mean(OURS, metric) is None:
            return None
        return statistics.geometric_mean(
            (floor_us(layer["case"]) + launch) / layer[OURS, metric] for layer in layers
        )

    return BatchRow(
        m,
        mean(OURS),
        mean(OURS, "time_without_overlap"),
        mean(CONTROL),
        mean(OURS, "time_with_quantization"),
        floor("time", 0.0),
        floor("time_without_overlap", LAUNCH_US),
        statistics.geometric_mean(ceiling(layer["case"]) for layer in layers),
        best,
        rivals.get(best),
        tuple(name for name in RIVALS if name not in rivals),
        len({layer["run"] for layer in layers}),
    )


def mean_over_batches(rows: list[BatchRow]) -> float | None:
    """Mean speed-up over the batches of ``MEAN_OF``; None where one is missing."""
    found = {row.m: row.ratio for row in rows}
    return statistics.mean(found[m] for m in MEAN_OF) if found.keys() >= {*MEAN_OF} else None


def as_cells(row: BatchRow) -> dict[str, str]:
    """A row as text, column by column."""

    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    (must, goal), (rival_must, _) = _bars(row.m)
    return {
        "Batch": str(row.m),
        "W4Ax": shown(row.ratio) + "*" * row.is_above,
        "without overlap": shown(row.without_overlap),
        "W4A8 control": shown(row.control),
        "with quantization": shown(row.with_quantization),
        "of floor": shown(row.floor_overlapped),
        "of floor without overlap": shown(row.floor),
        "ceiling": shown(row.ceiling),
        "best rival": f"{row.rival} {shown(row.rival_ratio)}" if row.rival else "-",
        "over it": shown(row.over_rival),
        "bars": f"{must} / {goal}, {rival_must} over the rival",
        "reached": row.verdict,
    }


def as_markdown(rows: list[BatchRow]) -> str:
    """The rows as a Markdown table."""
    if not rows:
        return "no batch has times of comet-w4ax and cublas-bf16 for all six reference layers"
    cells = [as_cells(row) for row in rows]
    lines = [list(cells[0]), ["--:"] * len(cells[0]), *(list(each.values()) for each in cells)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
