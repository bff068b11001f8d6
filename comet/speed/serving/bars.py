# SPDX-License-Identifier: Apache-2.0
"""What serving with COMET reaches: throughput over rival engines, and tokens of KV cache."""

from dataclasses import dataclass

OURS, SIXTEEN_BIT, W4A16 = "vllm-comet", "vllm-bf16", "vllm-w4a16"
RIVALS = (SIXTEEN_BIT, W4A16, "vllm-fp8", "vllm-fp8-kv8")
BAR_CASE = {
    "model": "LLaMA-3-8B",
    "input_tokens": 1024,
    "output_tokens": 512,
    "requests": 256,
    "memory_cap": None,
}
BARS = {"must": 1.15, "good": 1.3}  # over the best rival
GOAL = 2.02  # over W4A16, the paper's average
PAGE_BAR, TAIL_BAR = 3.6, 3.3  # times the tokens of 16 bit, at head size 128
TAIL_TOKENS = 1280  # of a request, the mean of 1024/512


@dataclass(frozen=True)
class Row:
    """One load of one run.

    Attributes:
        case: of the records.
        ours: generated tokens/s of ``OURS``.
        rivals: tokens/s by engine, those that ran the load in the same run.
        gpu: readings of the GPU beside ours, None where there are none.
    """

    case: dict
    ours: float
    rivals: dict[str, float]
    gpu: dict | None = None

    @property
    def best(self) -> str:
        """The fastest rival."""
        return max(self.rivals, key=self.rivals.__getitem__)

    @property
    def speedup(self) -> float:
        """Over the fastest rival."""
        return self.ours / self.rivals[self.best]

    @property
    def over_w4a16(self) -> float | None:
        """Over the engine with 4-bit weights only, None if it did not run."""
        return self.ours / self.rivals[W4A16] if W4A16 in self.rivals else None


def rows(records: list[dict]) -> list[Row]:
    """Loads that ``OURS`` and a rival served in one run; the newest run of each load.

    Args:
        records: of any kind, as dictionaries.
    """
    found = _by_run(records, "tokens_per_s")
    made = {}
    for (case, _), rates in found.items():
        rivals = {name: record["median"] for name, record in rates.items() if name in RIVALS}
        if OURS in rates and rivals:
            ours = rates[OURS]
            read = (ours["method"] or {}).get("gpu")
            made[case] = Row(ours["case"], ours["median"], rivals, read)
    return list(made.values())


def bar(row: Row) -> str:
    """The highest bar that a row reaches, ``none``, or ``incomplete`` where a rival is missing."""
    if set(row.rivals) < set(RIVALS):
        return "incomplete"
    reached = [name for name, limit in BARS.items() if row.speedup >= limit]
    if len(reached) == len(BARS) and row.over_w4a16 >= GOAL:
        return "goal"
    return (reached or ["none"])[-1]


def page_ratio(head_dim: int) -> float:
    """Tokens that full KV4 pages hold in the bytes of one token in 16 bit."""
    from comet.formats.kv4 import PAGE, page_bytes  # torch: not for figures and parsing

    return PAGE * 4 * head_dim / page_bytes(head_dim)


def ratio_with_tails(head_dim: int, tokens: int) -> float:
    """``page_ratio`` for requests of ``tokens`` tokens, whole pages and the slot that each request
    has for its unfinished page of K in 16 bit counted."""
    from comet.formats.kv4 import PAGE, page_bytes

    kv4 = -(-tokens // PAGE) * page_bytes(head_dim) + 2 * PAGE * head_dim
    return tokens * 4 * head_dim / kv4


def admitted(records: list[dict]) -> dict[str, tuple[float, float]]:
    """Tokens of KV cache of ``OURS`` and of 16 bit in one run, by model; without a memory cap."""
    return {
        found[OURS]["case"]["model"]: (found[OURS]["median"], found[SIXTEEN_BIT]["median"])
        for found in _by_run(records, "kv_cache_tokens").values()
        if OURS in found and SIXTEEN_BIT in found and found[OURS]["case"]["memory_cap"] is None
    }


def sentences(records: list[dict], whose: str) -> list[str]:
    """What the bars' load and the KV cache reach, for people.

    Args:
        records: as dictionaries.
        whose: ``this run`` or another name of where they come from.
    """
    return [_throughput(records, whose), *_cache(records)]


def _throughput(records: list[dict], whose: str) -> str:
    name = "{model}, {input_tokens}/{output_tokens}, {requests} requests".format(**BAR_CASE)
    limits = ", ".join(f"{name} {limit}" for name, limit in BARS.items())
    limits = f"Bars: {limits} times the best rival; goal {GOAL} times W4A16."
    for row in rows(records):
        if row.case == BAR_CASE:
            over = "" if row.over_w4a16 is None else f", {row.over_w4a16:.2f} times W4A16"
            return (
                f"{name} ({whose}): {row.ours:,.0f} generated tokens/s, {row.speedup:.3f} times "
                f"the best rival ({row.best}){over}. {limits} Reached: {bar(row)}."
            )
    return f"{name}: not measured with COMET and a rival in one run. {limits}"


def _cache(records: list[dict]) -> list[str]:
    page, tails = page_ratio(128), ratio_with_tails(128, TAIL_TOKENS)
    said = [
        f"Computed from the sizes of pages and tail slots at head size 128: pages hold {page:.2f} "
        f"times the tokens of a 16-bit cache (bar {PAGE_BAR}); with every tail slot in use at "
        f"{TAIL_TOKENS:,} tokens a request {tails:.2f} times (bar {TAIL_BAR})."
    ]
    for model, (ours, other) in admitted(records).items():
        said.append(
            f"Measured, {model}: vLLM admits {ours:,.0f} tokens with COMET and {other:,.0f} in 16 "
            f"bit, {ours / other:.2f} times as many; smaller weights leave more room, tail slots "
            "are taken off beforehand."
        )
    return said


def _by_run(records: list[dict], metric: str) -> dict[tuple, dict[str, dict]]:
    """Measured records of a metric by (case, run), then by engine."""
    found: dict[tuple, dict[str, dict]] = {}
    for record in records:
        measured = record["status"] == "ok" and record["origin"] == "measured"
        if record["kind"] == "serving" and record["metric"] == metric and measured:
            key = repr(sorted(record["case"].items())), record["provenance"].get("run_id")
            found.setdefault(key, {})[record["backend"]] = record
    return found
