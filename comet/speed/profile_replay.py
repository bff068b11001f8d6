# SPDX-License-Identifier: Apache-2.0
"""Runs GEMM backends a few times each under a profiler, every run in a range with a name.

``python -m comet.speed.profile_replay PLAN OUT``: PLAN is JSON (``write_plan``), OUT gets one JSON
object a line for each item: what its backend says of itself, or why it did not run.
"""

import gc
import json
import sys
from pathlib import Path

from comet.files import write_json

WARM_UP = 2


def label(item: int, repeat: int) -> str:
    """Name of the range around one run."""
    return f"comet-{item}-{repeat}"


def write_plan(path: Path, items: list[tuple[dict, str]], repeats: int, seed: int) -> None:
    """Write what shall run: pairs of a gemm case and a backend, each so many times."""
    write_json(path, {"items": items, "repeats": repeats, "seed": seed})


def replay(plan: dict, out: Path) -> None:
    """Run the items of a plan on the current GPU; an item that fails does not stop the others."""
    import torch

    device = torch.device("cuda", torch.cuda.current_device())
    with open(out, "w", encoding="utf-8") as stream:
        for number, (case, backend) in enumerate(plan["items"]):
            torch.manual_seed(plan["seed"])
            said = _replay_one(case, backend, number, plan["repeats"], device)
            stream.write(json.dumps(said, default=str) + "\n")
            stream.flush()
            gc.collect()
            torch.cuda.empty_cache()


def _replay_one(case: dict, backend: str, number: int, repeats: int, device) -> dict:
    import torch

    from comet.speed.backends import GemmShape, Unavailable, backend_of

    try:
        workload = backend_of(backend).load(GemmShape.of(case), device)
        for call in workload.calls[:WARM_UP]:
            call()
        torch.cuda.synchronize()
        with torch.cuda.profiler.profile():
            for repeat in range(repeats):
                with torch.cuda.nvtx.range(label(number, repeat)):
                    workload.calls[repeat % len(workload.calls)]()
                torch.cuda.synchronize()
    except Unavailable as missing:
        return {"status": "skipped", "reason": str(missing)}
    except (RuntimeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return {"status": "failed", "reason": reason}
    return {"status": "ok", "details": workload.details}


if __name__ == "__main__":
    replay(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
