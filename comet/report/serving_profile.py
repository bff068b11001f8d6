# SPDX-License-Identifier: Apache-2.0
"""Where the GPU's time goes while an engine serves: kernels of a profiled run, by what they do."""

import re

# The first pattern that a kernel's name matches decides.
PARTS = {
    "W4Ax GEMM": r"w4ax",
    "decode attention over the 4-bit cache": r"kv4::decode",
    "flash attention (with KV4: of prompts)": r"flash",
    "quantization of activations, with norms and SiLU": r"quantize_kernel",
    "append to the 4-bit cache": r"kv4::(append|unpack)",
    "other GEMM (with W4Ax: the output head)": r"nvjet|cublas|cutlass|marlin|gemm",
    "compiled operators (rotary embedding and others)": r"^triton_",
}
OTHERS = "sampling, copies and bookkeeping"
IDLE = "GPU idle"
PHASES = {"prefill": "Prefill", "decode_step": "Decode step"}


def profile_summary(records: list[dict]) -> dict:
    """Rows and a sentence on the newest profiled load.

    Args:
        records: of ``comet bench serving --profile``, as dictionaries.

    Returns:
        ``rows`` (dictionaries of text, empty without a profile) and ``sentence``.
    """
    found = [record for record in records if (record["method"] or {}).get("kernels")]
    if not found:
        return {"rows": [], "sentence": "No engine was profiled."}
    record = max(found, key=lambda record: record["provenance"]["start"])
    kernels = record["method"]["kernels"]
    parts = {phase: by_part(kernels, phase) for phase in PHASES}
    return {"rows": _rows(parts), "sentence": _sentence(record, kernels)}


def by_part(kernels: dict, phase: str) -> dict[str, float]:
    """GPU microseconds of a phase by part; what the record does not list counts as ``OTHERS``.

    Args:
        kernels: of the record's method.
        phase: of ``PHASES``.
    """
    times = dict.fromkeys((*PARTS, OTHERS), 0.0)
    for row in kernels[phase]:
        times[part_of(row["kernel"])] += row["us"]
    times[OTHERS] += kernels["gpu_us"][phase] - sum(times.values())
    # A difference of two runs may come out below zero.
    return times | {IDLE: max(0.0, kernels["idle_us"][phase])}


def part_of(kernel: str) -> str:
    """What a kernel does, by its name."""
    return next((part for part, name in PARTS.items() if re.search(name, kernel)), OTHERS)


def _rows(parts: dict[str, dict[str, float]]) -> list[dict[str, str]]:
    rows = []
    for part in (*PARTS, OTHERS, IDLE):
        row = {"Part": part}
        for phase, title in PHASES.items():
            us, whole = parts[phase][part], sum(parts[phase].values())
            row |= {f"{title}, ms": f"{us / 1e3:.2f}", f"{title}, share": f"{us / whole:.1%}"}
        rows.append(row)
    return rows


def _sentence(record: dict, kernels: dict) -> str:
    load, wall = kernels["load"], kernels["wall_us"]
    device = record["environment"].get("device", "an unknown device")
    return (
        f"Where the GPU's time goes: {record['backend']}, {record['case']['model']}, "
        f"{load['requests']} requests of {load['input_tokens']} tokens, on {device}. The prefill "
        f"of all requests takes {wall['prefill'] / 1e3:,.0f} ms, one step of all of them after it "
        f"{wall['decode_step'] / 1e3:.2f} ms (by the clock, without the profiler). A kernel that "
        "starts before its predecessor ends is counted from that end."
    )
