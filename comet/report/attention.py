# SPDX-License-Identifier: Apache-2.0
"""The table of decode attention over a 4-bit KV cache, and what its mean reaches."""

from collections.abc import Iterator

from comet.speed.attention_bars import (
    APPEND_CASE,
    APPEND_LIMIT,
    BARS,
    CEILING,
    LEAST_BYTES,
    Row,
    Verdict,
    verdict,
)


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
        "sentences": [*_mean(found, whose), _append(found)],
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


def _mean(found: Verdict, whose: str) -> Iterator[str]:
    limits = ", ".join(f"{name} {limit:.1f}" for name, limit in BARS.items())
    total = len(found.rows) + len(found.missing)
    yield (
        f"Geometric mean over {len(found.rows)} of {total} rows of {whose} (at least "
        f"{LEAST_BYTES / 1e6:.0f} MB of 16-bit KV each): {found.mean:.2f}. Bars: {limits}; ceiling "
        f"by traffic {CEILING:.2f}. Reached: {found.bar}."
    )
    if found.missing:
        yield (
            "Rows without a measurement of KV4 and of both 16-bit kernels in one run: "
            f"{'; '.join(found.missing)}."
        )


def _append(found: Verdict) -> str:
    where = "{model}, batch {batch}, context {context}".format(**APPEND_CASE)
    if found.append_share is None:
        return f"The append of a token was not measured for {where}."
    return (
        f"The append of a token takes {found.append_share:.2f} % of decode ({where}; mean of 64 "
        f"steps, one of which seals a page; limit {APPEND_LIMIT:.0f} %)."
    )
