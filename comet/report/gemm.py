# SPDX-License-Identifier: Apache-2.0
"""The table of the GEMM kernel's speed on the reference layers, and what it means."""

from comet.speed.gemm_bars import (
    LAUNCH_US,
    MEAN_BARS,
    MEAN_OF,
    SEEN_BYTES_PER_US,
    as_cells,
    batch_rows,
    mean_over_batches,
)

CONTROL = (
    "W4Ax cannot be faster than the W4A8 control on a Hopper GPU. It has no 4-bit tensor cores: "
    "4-bit activations are multiplied as 8-bit integers, so that an INT4 block costs what an INT8 "
    "block costs, and two kinds of blocks cost a little more than one. What W4Ax saves there is "
    "memory traffic of weights, and W4A8 saves the same. The advantage of W4A4 over W4A8 that the "
    "paper shows exists on GPUs with 4-bit tensor cores, such as the A100, alone."
)


def gemm_summary(records: list[dict], reference: list[dict]) -> dict:
    """Rows and sentences of the report; of this run where it measured any row, else the reference.

    Args:
        records, reference: measurements as dictionaries.

    Returns:
        ``rows`` (dictionaries of text, empty without a measurement) and ``sentences``.
    """
    here = batch_rows(records)
    rows = here or batch_rows(reference)
    if not rows:
        return {"rows": [], "sentences": ["No reference layer was measured."]}
    whose = "this run" if here else "the reference run"
    sentences = [
        f"Geometric means over the six reference layers of {whose}, cuBLAS in bf16 = 1, launches "
        "of COMET's kernels overlapped. The floor is memory traffic at "
        f"{SEEN_BYTES_PER_US / 1e6:.2f} TB/s, and {LAUNCH_US} us a launch where launches do not "
        "overlap. A row counts when every rival was measured beside it in one run.",
    ]
    mean = mean_over_batches(rows)
    if mean:
        batches = ", ".join(map(str, MEAN_OF))
        sentences.append(
            f"Mean over the batches {batches}: {mean:.2f}; must {MEAN_BARS[0]}, goal "
            f"{MEAN_BARS[1]}, which is the paper's mean on an A100."
        )
    if any(row.is_above for row in rows):
        sentences.append(
            "* above the ceiling: there cuBLAS takes longer than the limits of the GPU require, so "
            "that a ratio to it exceeds what W4Ax could gain over a perfect 16-bit kernel."
        )
    if any(row.control for row in rows):
        sentences.append(CONTROL)
    return {"rows": [as_cells(row) for row in rows], "sentences": sentences}
