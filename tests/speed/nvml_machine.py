# SPDX-License-Identifier: Apache-2.0
"""A made-up machine for the fake NVML in ``tests/fakes``."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FAKES = REPOSITORY / "tests" / "fakes"
# Takes a GPU, names it, and keeps it until its input ends.
HOLD = """
import sys
from comet.speed.lease import LeaseOptions, gpu_lease
together = "together" in sys.argv
options = LeaseOptions(side_by_side=together)
with gpu_lease("holder", timed=not together, options=options) as lease:
    print(lease.gpu.uuid, flush=True)
    sys.stdin.read()
"""


class Machine:
    """GPUs that this process and its children see through NVML, and a folder for their locks."""

    def __init__(self, monkeypatch, folder: Path) -> None:
        self.file, self.locks = folder / "nvml.json", folder / "locks"
        self._variables = {"FAKE_NVML": str(self.file), "COMET_GPU_LOCKS": str(self.locks)}
        for name, value in self._variables.items():
            monkeypatch.setenv(name, value)
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "COMET_GPU_LEASE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.syspath_prepend(FAKES)
        monkeypatch.delitem(sys.modules, "pynvml", raising=False)
        self.has("GPU-a", "GPU-b")

    def has(self, *gpus: str | dict, **facts) -> None:
        """Set its GPUs, by UUID or as the fake describes them."""
        listed = [{"uuid": gpu} if isinstance(gpu, str) else gpu for gpu in gpus]
        self.file.write_text(json.dumps({"gpus": listed, **facts}), encoding="utf-8")

    def environment(self) -> dict[str, str]:
        """For a child process that imports comet and the fake."""
        paths = os.pathsep.join(map(str, (FAKES, REPOSITORY)))
        return os.environ | self._variables | {"PYTHONPATH": paths}


@contextmanager
def stranger() -> Iterator[subprocess.Popen]:
    """A process without a lease, ``sh -c ... train``, which runs until the end of the block."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = subprocess.Popen(["sh", "-c", "echo ready; read line", "train"], **pipes)
    # Before it has started it has no command line.
    child.stdout.readline()
    yield child
    child.communicate(b"\n")
