# SPDX-License-Identifier: Apache-2.0
"""Suites, shards, and runs that go on where they stopped; no GPU is needed."""

import json

import pytest
import torch

from comet.errors import UserError
from comet.measurements import read_records
from comet.speed import gemm
from comet.speed.backends import BACKENDS, Unsupported, Workload
from comet.speed.bench import estimated_seconds
from comet.speed.cases import ABLATIONS, MODES, REFERENCE_BACKENDS, jobs_of, shard_of
from comet.speed.command import COST

ENVIRONMENT = {"device": "Test GPU", "driver": "1", "cuda": "13.0", "engines": {}}


def test_the_reference_suite_is_six_shapes_at_eleven_batches():
    jobs = jobs_of("reference")
    assert len(jobs) == 66
    assert len({(job.case["n"], job.case["k"]) for job in jobs}) == 6
    assert [job.case["m"] for job in jobs[:7]] == [1] * 6 + [8]
    assert {job.backends for job in jobs} == {REFERENCE_BACKENDS}


def test_modes_and_ablations_say_what_they_change():
    modes = jobs_of("modes", [16])
    assert len(modes) == 6 * len(MODES)
    assert {job.case["act_scale"] for job in modes} == {
        "token_block_multiple",
        "token_block",
        "token",
    }
    variants = jobs_of("ablations", [16, 32])
    assert {job.case["variant"] for job in variants} == set(ABLATIONS)
    assert len(variants) == 2 * 4 * len(ABLATIONS)


def test_shards_are_a_partition():
    jobs = jobs_of("LLaMA-3-8B")
    parts = [shard_of(jobs, f"{i}/3") for i in (1, 2, 3)]
    assert sorted(len(part) for part in parts) == [6, 7, 7]
    assert [job for job in jobs if any(job in part for part in parts)] == jobs


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_a_bad_shard_is_named(shard):
    with pytest.raises(UserError, match=f"--shard is '{shard}'; it must be i/n"):
        shard_of([], shard)


def test_the_printed_cost_is_the_estimate():
    assert 150 < estimated_seconds(jobs_of("reference")) < 180
    assert "about 3 minutes" in COST
    assert round(estimated_seconds(jobs_of("reference", [1]))) in range(14, 17)


@pytest.fixture
def counted(monkeypatch):
    """Two fake backends on a fake GPU; which case each measured, and whether one breaks."""
    seen, broken = [], []

    def fake(name):
        class Fake:
            def prepare(self, shapes, seed):
                pass

            def load(self, shape, device):
                seen.append((name, shape.m, shape.layer))
                if (name, shape.m) in broken:
                    raise KeyboardInterrupt
                if name == "one" and shape.m == 1:
                    raise Unsupported("not at one token")
                return Workload([lambda: 2.0])

        return Fake()

    for name in ("one", "two"):
        monkeypatch.setitem(BACKENDS, name, fake(name))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(gemm, "gpu_environment", lambda device: ENVIRONMENT)
    monkeypatch.setattr(gemm.nvml, "sample", lambda: None)
    monkeypatch.setattr(gemm, "time_graph", lambda calls, options: [call() for call in calls])
    return seen, broken


def run(folder, source="a", m=(1, 16), backends=("one", "two")):
    library = folder / "libcomet_kernels.so"
    library.with_name("build.json").write_text(json.dumps({"source_sha256": source}))
    jobs = jobs_of("LLaMA-3-8B", list(m), list(backends))
    return gemm.measure(jobs, library, {}, 0, keep=folder / "cases")


def test_a_killed_run_goes_on_where_it_stopped(counted, tmp_path):
    seen, broken = counted
    broken.append(("two", 16))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    kept = sorted((tmp_path / "cases").glob("*.jsonl"))
    assert len(kept) == 4  # all layers at m = 1, none at m = 16
    assert [record.status for record in read_records(kept[0])] == ["skipped", "ok"]
    broken.clear()
    seen.clear()
    records = run(tmp_path)
    assert {m for _, m, _ in seen} == {16}
    assert len(records) == 16
    assert len({record.provenance["run_id"] for record in records if record.case["m"] == 1}) == 1
    seen.clear()
    assert run(tmp_path) == records
    assert seen == []


def test_another_library_or_backend_measures_anew(counted, tmp_path):
    seen, _ = counted
    run(tmp_path, m=[16], backends=["one"])
    seen.clear()
    run(tmp_path, m=[16], backends=["one", "two"])
    assert len(seen) == 8
    seen.clear()
    run(tmp_path, source="b", m=[16])
    assert len(seen) == 8


def test_what_failed_is_tried_again(counted, tmp_path, monkeypatch):
    seen, _ = counted
    monkeypatch.setattr(gemm, "time_graph", lambda calls, options: [][0])
    monkeypatch.setattr(gemm, "_time", lambda *_: (_ for _ in ()).throw(RuntimeError("refused")))
    assert {record.status for record in run(tmp_path, m=[16])} == {"failed"}
    seen.clear()
    run(tmp_path, m=[16])
    assert len(seen) == 8
