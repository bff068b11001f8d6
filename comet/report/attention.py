# SPDX-License-Identifier: Apache-2.0
"""The table of decode attention over a 4-bit KV cache, and what its mean reaches."""

from comet.speed.attention_bars import Row, sentences, verdict


def attention_summary(records: list[dict], reference: list[dict]) -> dict:
    """Rows and sentences of the report; of this run where it measured any row, else the reference.

    Args:
        records, reference: measurements as dictionaries.

    Returns:
        ``rows`` (dictionaries of text, empty without a measurement) and ``sentences``.
    """
    here = verdict(records)
    found = here if here.rows else verdict(reference)
    if not found.rows:
        return {"rows": [], "sentences": ["No decode attention was measured."]}
    whose = "this run" if here.rows else "the reference run"
    return {
        "rows": [_row(row) for row in found.rows],
        "sentences": sentences(found, whose),
    }


def _row(row: Row) -> dict[str, str]:
    case = row.case
    return {
        "Model": case["model"],
        "Batch": str(case["batch"]),
        "Context": str(case["context"]),
        "16-bit KV, MB": f"{case['kv_bytes_16bit'] / 1e6:.0f}",
        "Faster 16-bit kernel": row.baseline_name,
        "its time, us": f"{row.baseline:.1f}",
        "KV4, us": f"{row.ours:.1f}",
        "Speed-up": f"{row.speedup:.2f}",
    }
