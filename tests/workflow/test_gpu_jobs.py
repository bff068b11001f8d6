# SPDX-License-Identifier: Apache-2.0
"""Several GPU jobs of one Snakemake: each has a GPU of its own, as many at once as it may run."""

import json
import subprocess
import sys
from pathlib import Path

from runner import environment

FAKES = Path(__file__).resolve().parents[1] / "fakes"
SNAKEFILE = """
rule all:
    input: expand("{job}.json", job=range(4))

rule measure:
    output: "{job}.json"
    log: "{job}.log"
    resources: gpu=1
    script: "measure.py"
"""
SCRIPT = """
import json, os, time
from pathlib import Path
from comet.logs import logged
from comet.speed.lease import job_gpu

with logged(snakemake), job_gpu(snakemake, timed=True) as lease:
    start = time.time()
    time.sleep(1)
    held = [lease.gpu.uuid, os.environ["CUDA_VISIBLE_DEVICES"], start, time.time()]
    Path(snakemake.output[0]).write_text(json.dumps(held))
"""


def test_two_gpus_run_two_jobs_at_a_time(tmp_path):
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "measure.py").write_text(SCRIPT)
    machine = tmp_path / "nvml.json"
    machine.write_text('{"gpus": [{"uuid": "GPU-a"}, {"uuid": "GPU-b"}]}')
    variables = {"FAKE_NVML": str(machine), "COMET_GPU_LOCKS": str(tmp_path / "locks")}
    # Four jobs may start at once: the lease alone keeps them apart.
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "4", "--resources", "gpu=4"],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(FAKES), **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    jobs = sorted(json.loads(path.read_text()) for path in tmp_path.glob("[0-3].json"))
    assert {(uuid, number) for uuid, number, _, _ in jobs} == {("GPU-a", "0"), ("GPU-b", "1")}
    for uuid in ("GPU-a", "GPU-b"):
        times = sorted((start, end) for name, _, start, end in jobs if name == uuid)
        assert all(end <= start for (_, end), (start, _) in zip(times, times[1:], strict=False))
    first = sorted(start for _, _, start, _ in jobs)
    assert first[1] < min(end for _, _, _, end in jobs), "two ran at once"
