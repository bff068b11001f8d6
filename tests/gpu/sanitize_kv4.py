# SPDX-License-Identifier: Apache-2.0
"""Small KV4 problems for compute-sanitizer, which finds accesses and races that no result shows:

compute-sanitizer --tool memcheck python tests/gpu/sanitize_kv4.py
compute-sanitizer --tool racecheck python tests/gpu/sanitize_kv4.py
compute-sanitizer --tool synccheck python tests/gpu/sanitize_kv4.py
compute-sanitizer --tool initcheck python tests/gpu/sanitize_kv4.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch  # noqa: E402
from kv4_inputs import clone, empty_state, filled_state, random_tokens, starts_of  # noqa: E402

from comet.kernels import kv4  # noqa: E402
from comet.kernels.plan_kv4 import Plan  # noqa: E402

LENGTHS = [130, 0, 64, 5, 191]


def main() -> None:
    """Append, decode with several plans, unpack; both head dimensions, both tiles of heads."""
    for dim, dtype in ((128, torch.bfloat16), (64, torch.float16)):
        state = clone(filled_state(LENGTHS, dim, 2, dtype)[0], "cuda")
        for group, window in ((4, None), (12, 70)):
            query = random_tokens(len(LENGTHS), 2 * group, dim, dtype, 7, 1.0).cuda()
            for plan in (Plan(1, 2, 3), Plan(4, 3, 2), Plan(8, 2, 5)):
                out = kv4.kv4_decode(query, *state, window=window, plan=plan)
                assert out.isfinite().all()
        empty = clone(empty_state(LENGTHS, dim, 2, dtype), "cuda")
        new = [random_tokens(sum(LENGTHS), 2, dim, dtype, s).cuda() for s in (1, 2)]
        kv4.kv4_append(*new, *empty, starts_of(LENGTHS).cuda(), max(LENGTHS))
        for length in (131, 132):
            empty.seq_lens[0] = length
            rows = [t[: len(LENGTHS)] for t in new]
            kv4.kv4_append(*rows, *empty)
        kv4.kv4_unpack(*state, starts_of(LENGTHS)[:-1].cuda(), sum(LENGTHS))
    torch.cuda.synchronize()
    print("done")


if __name__ == "__main__":
    main()
