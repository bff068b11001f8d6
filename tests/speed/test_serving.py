# SPDX-License-Identifier: Apache-2.0
"""End-to-end throughput: engines behind files, with programs that answer like the real ones."""

import io
import json
import os
import signal
import sys
import time
import types

import pytest
from nvml_machine import Machine
from serving_standins import GPU, JOB, LOADS, WORKER, by_metric, program

from comet.cli import main
from comet.errors import UserError
from comet.measurements import read_records
from comet.speed import capability
from comet.speed.serving import engines, trtllm, vllm_worker
from comet.speed.serving.cases import ServingJob, serving_jobs
from comet.speed.serving.models import fmpq_facts
from comet.speed.serving.records import serving_records, serving_starts


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """A Python that answers for vLLM's; ``worker(more)`` changes what it does with its answer."""
    monkeypatch.setattr(capability, "detect", lambda: GPU)

    def make(more: str = ""):
        body = WORKER + more + '\njson.dump(response, open(sys.argv[-1], "w"))\n'
        monkeypatch.setenv(engines.PYTHON, program(tmp_path / "python", body))

    make()
    return make


def test_loads_share_an_engine_start():
    settings = [
        {"models": ["A", "B"], "engines": ["vllm-bf16"], "loads": [[1, 2, 3], [1, 2, "max"]]},
        {"models": ["A"], "engines": ["vllm-bf16", "qserve"], "loads": [[1, 2, 3], [4, 5, 6]]},
    ]
    jobs = serving_jobs(settings)
    assert [(job.model, job.engine, len(job.loads)) for job in jobs] == [
        ("A", "vllm-bf16", 3),
        ("B", "vllm-bf16", 2),
        ("A", "qserve", 2),
    ]


@pytest.mark.parametrize(
    "change, said",
    [
        ({"engines": ["tgi"]}, "engine 'tgi' is unknown; use one of vllm-bf16"),
        ({"loads": [[1, 2]]}, "is not .input tokens"),
        ({"loads": [[1, 2, "most"]]}, "requests is 'most'; use a number or max"),
    ],
)
def test_settings_that_are_none_are_one_line(change, said):
    setting = {"models": ["A"], "engines": ["vllm-bf16"], "loads": [[1, 2, 3]]}
    with pytest.raises(UserError, match=said):
        serving_jobs([setting | change])


def test_records_of_a_worker(worker):
    records = serving_records([JOB], {}, 0, repeats=2)
    first, second = by_metric(records, "tokens_per_s")
    assert first.samples == [64 * 512 / 2, 64 * 512 / 4]
    assert first.case == JOB.case(LOADS[0])
    assert second.method["served"] == 300
    (cache,) = by_metric(records, "kv_cache_tokens")
    assert cache.samples == [1e6]
    asked = first.method["engine"]["asked"]
    assert asked["plugin"] is True
    assert asked["repeats"] == 2
    assert asked["arguments"] == {
        "max_model_len": 1536,
        "max_num_seqs": 512,
        "attention_backend": "CUSTOM",
    }


def test_the_gpu_is_read_beside_each_load(worker, monkeypatch, tmp_path):
    machine = Machine(monkeypatch, tmp_path)
    machine.has({"uuid": "GPU-a", "power_now": 698000, "clock": 1755, "throttled": 4})
    monkeypatch.setattr(engines, "READ_EVERY", 0.01)
    worker(
        "import time\nnow = time.time()\ntime.sleep(0.3)\n"
        "results[0]['windows'] = [[now, now + 0.2]]\nresults[1]['windows'] = [[0, 1]]"
    )
    first, second = by_metric(serving_records([JOB], {}, 0), "tokens_per_s")
    gpu = first.method["gpu"]
    assert (gpu["sm_clock_mhz"], gpu["power_w"], gpu["slowed_by"]) == (1755, 698, ["power cap"])
    assert gpu["busy_percent"] == 99
    assert 0 < gpu["slowed"] == gpu["readings"] <= 20
    assert second.method["gpu"]["readings"] == 0
    assert second.method["gpu"]["power_w"] is None


def test_a_gpu_that_cannot_be_read_stops_no_engine(worker, monkeypatch, tmp_path):
    Machine(monkeypatch, tmp_path)
    monkeypatch.delenv("FAKE_NVML")
    (first, _) = by_metric(serving_records([JOB], {}, 0), "tokens_per_s")
    assert first.status == "ok"
    assert first.method["gpu"]["missing"]


def test_the_folder_that_an_engine_gets(tmp_path):
    job = ServingJob("LLaMA-3-8B", "vllm-comet", LOADS, memory_cap=80.0)
    request = engines.worker_request(job, tmp_path, 0, 1, total_gb=160.0)
    assert request["memory_share"] == pytest.approx(engines.MEMORY_SHARE / 2)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["hidden_size"], config["num_hidden_layers"]) == (4096, 32)
    layers = config["quantization_config"]["layers"]
    assert len(layers) == 32 * 7
    assert layers["model.layers.31.mlp.down_proj"]["int4_blocks"] == 112 - 22
    assert layers["model.layers.0.self_attn.q_proj"]["int8_blocks"] == 6
    json.dumps(request)


def test_facts_without_calibration_are_those_of_a_real_checkpoint(tmp_path):
    from tiny_models import tiny_config, write_model, write_text, write_tokenizer

    from comet.fmpq.options import FMPQOptions
    from comet.fmpq.pipeline import Calibration, quantize_model
    from comet.formats.checkpoint import Checkpoint
    from comet.models.folder import ModelFolder
    from comet.models.shapes import shapes_from_config

    config = tiny_config("llama", hidden_size=160, intermediate_size=384)
    write_model(tmp_path / "model", config)
    write_tokenizer(tmp_path / "model")
    calibration = Calibration(write_text(tmp_path / "text.jsonl"), "words", windows=2, context=64)
    folder = ModelFolder(tmp_path / "model")
    quantize_model(folder, calibration, tmp_path / "q", FMPQOptions(), "fmpq", "tiny", {}, seed=0)
    made = fmpq_facts(shapes_from_config(config, "tiny"), "llama", FMPQOptions())
    facts = Checkpoint(tmp_path / "q").facts
    assert made["layers"] == facts["layers"]
    assert made["options"] == facts["options"]


def test_a_finished_start_is_not_run_again(worker, tmp_path):
    keep = tmp_path / "kept"
    records = serving_records([JOB], {}, 0, keep=keep)
    worker("sys.exit('it was started again')")
    assert serving_records([JOB], {}, 0, keep=keep) == records


def run_ids(records):
    return [record.provenance["run_id"] for record in records]


ENGINE_STARTS = [
    ServingJob("LLaMA-3-8B", name, LOADS) for name in ("vllm-comet", "vllm-bf16", "vllm-w4a16")
]


def killed_after_two(keep) -> list:
    starts = serving_starts(ENGINE_STARTS, {"try": 1}, 0, keep=keep)
    return next(starts) + next(starts)


def test_a_killed_run_goes_on_under_its_run_id(worker, tmp_path, capsys):
    first = killed_after_two(tmp_path)
    records = serving_records(ENGINE_STARTS, {"try": 2}, 0, keep=tmp_path)
    assert records[: len(first)] == first
    assert {record.backend for record in records[len(first) :]} == {"vllm-w4a16"}
    assert set(run_ids(records)) == {first[0].provenance["run_id"]}
    assert f"continues run {first[0].provenance['run_id']}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gpu", "driver"])
def test_another_machine_is_another_run(worker, tmp_path, monkeypatch, name):
    first = killed_after_two(tmp_path)
    monkeypatch.setattr(capability, "detect", lambda: GPU | {name: "another"})
    time.sleep(1)  # a run_id holds the second of its start
    records = serving_records(ENGINE_STARTS, {}, 0, keep=tmp_path)
    assert len(set(run_ids(records))) == 1
    assert not set(run_ids(records)) & set(run_ids(first))


def test_only_comets_engines_are_measured_again_after_a_commit(worker, tmp_path, monkeypatch):
    from comet.speed.serving import records as module

    first = killed_after_two(tmp_path)
    original = module.provenance
    monkeypatch.setattr(module, "provenance", lambda *a: original(*a) | {"commit": "newer"})
    records = serving_records(ENGINE_STARTS, {}, 0, keep=tmp_path)
    commits = {record.backend: record.provenance["commit"] for record in records}
    assert commits["vllm-comet"] == commits["vllm-w4a16"] == "newer"
    assert commits["vllm-bf16"] == first[0].provenance["commit"]
    assert len(set(run_ids(records))) == 1


def test_results_can_be_read_without_a_gpu(worker, tmp_path, monkeypatch):
    records = serving_records([JOB], {}, 0, keep=tmp_path)
    nothing = {"gpu": None, "driver": None, "gpu_missing": "no GPU"}
    monkeypatch.setattr(capability, "detect", lambda: GPU | nothing)
    assert serving_records([JOB], {}, 0, keep=tmp_path) == records


def test_an_engine_ends_with_the_program_that_started_it(worker, tmp_path, monkeypatch):
    noted = tmp_path / "pid"
    worker(f"""
import os, time
open({str(noted)!r}, "w").write(str(os.getpid()))
print("loading", flush=True)
time.sleep(60)
""")
    said = io.StringIO()
    monkeypatch.setattr(engines.sys, "stderr", said)

    def stop(*_):
        if noted.is_file() and noted.read_text():
            sys.exit("stopped")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
    try:
        with pytest.raises(SystemExit, match="stopped"):
            serving_records([JOB], {}, 0, keep=tmp_path / "kept")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert "loading" in said.getvalue()
    with pytest.raises(ProcessLookupError):
        os.kill(int(noted.read_text()), 0)
    assert not (tmp_path / "kept").exists()


def test_engines_share_what_they_compile(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", "/site")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    found = engines.surroundings(tmp_path, tmp_path / "plugin")
    assert found["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
    assert found["PYTHONPYCACHEPREFIX"] == str(tmp_path / "python")
    assert "PYTHONDONTWRITEBYTECODE" not in found
    assert found["PYTHONPATH"] == f"{tmp_path}/plugin:{engines.REPOSITORY}:/site"
    assert (found["HF_HUB_OFFLINE"], found["VLLM_USE_AOT_COMPILE"]) == ("1", "0")
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE")
    monkeypatch.setenv("VLLM_USE_AOT_COMPILE", "1")
    found = engines.surroundings(tmp_path, tmp_path / "plugin")
    assert "PYTHONPYCACHEPREFIX" not in found
    assert found["VLLM_USE_AOT_COMPILE"] == "1"


@pytest.mark.parametrize("engine, entries", [("vllm-comet", ["comet"]), ("vllm-bf16", [])])
def test_processes_that_vllm_starts_find_the_plugin(worker, engine, entries):
    worker("""
from importlib.metadata import entry_points
found = entry_points(group="vllm.general_plugins")
named = {e.name: e.value for e in found if e.dist.name == "comet-plugins"}
response["engine"]["plugins"] = sorted(named)
response["engine"]["same"] = all(
    f"{e.load().__module__}:register" == named.get(e.name, e.value) for e in found
)
""")
    (first, *_) = serving_records([ServingJob("LLaMA-3-8B", engine, LOADS)], {}, 0)
    assert first.method["engine"]["plugins"] == [*entries, "comet_weights"]
    assert first.method["engine"]["same"]


def test_a_profiled_engine_is_never_part_of_an_unprofiled_run(worker, tmp_path):
    loads = ["--loads", "1024/512/64", "128/128/max"]
    command = ["bench", "serving", "LLaMA-3-8B", "--engines", "vllm-comet", *loads]
    for name, more in (("serving-profile", ["--profile"]), ("serving", [])):
        assert main([*command, *more, "--out", str(tmp_path)]) == 0
        (first, _) = by_metric(read_records(tmp_path / f"{name}.jsonl"), "tokens_per_s")
        assert first.method["engine"]["asked"]["profile"] == bool(more)


def test_the_profile_is_of_the_largest_load():
    loads = [
        {"input_tokens": tokens, "requests": requests}
        for tokens, requests in [(1024, 64), (1024, 256), (128, 256), (1024, "max")]
    ]
    assert vllm_worker.largest(loads) == loads[1]
    assert vllm_worker.largest(loads[3:]) == loads[3]


@pytest.mark.parametrize(
    "took, repeats, runs",
    [(1.2, 1, 3), (2.9, 1, 3), (3.1, 1, 2), (7.0, 1, 1), (7.0, 2, 2), (0.1, 5, 5)],
)
def test_short_loads_are_timed_again(monkeypatch, took, repeats, runs):
    load = {"input_tokens": 3, "output_tokens": 4, "requests": 2}
    config = types.SimpleNamespace(model_config=types.SimpleNamespace(get_vocab_size=lambda: 99))
    llm = types.SimpleNamespace(llm_engine=types.SimpleNamespace(vllm_config=config))
    served = []

    def generate(llm, prompts, tokens):
        served.append(prompts)
        return took, len(prompts) * tokens

    monkeypatch.setattr(vllm_worker, "generate", generate)
    found = vllm_worker.serve(llm, load, {"seed": 7, "repeats": repeats})
    assert found["seconds"] == [took] * runs and len(found["windows"]) == runs
    timed = [str(prompts) for prompts in served[1:]]
    assert len(set(timed)) == runs


def test_a_decode_step_is_what_a_longer_run_adds(monkeypatch):
    runs = {
        1: {"gemm": (4, 100.0), "idle": (2, 8.0)},
        65: {"gemm": (68, 740.0), "decode": (48, 1000.0), "idle": (2, 10.0)},
        129: {
            "gemm": (196, 2020.0),
            "decode": (112, 2920.0),
            "late": (64, 128.0),
            "idle": (40, 138.0),
        },
    }
    config = types.SimpleNamespace(model_config=types.SimpleNamespace(get_vocab_size=lambda: 99))
    llm = types.SimpleNamespace(llm_engine=types.SimpleNamespace(vllm_config=config))
    monkeypatch.setattr(vllm_worker, "kernel_times", lambda llm, prompts, tokens: runs[tokens])
    seconds = {1: (0.5, 2), 65: (0.7, 130), 129: (0.74, 258)}
    monkeypatch.setattr(vllm_worker, "generate", lambda llm, prompts, tokens: seconds[tokens])
    load = {"input_tokens": 3, "output_tokens": 4, "requests": 2}
    found = vllm_worker.profiled(llm, load, 0)
    assert found["runs"][1:] == [
        {"output_tokens": 65, "wall_us": 7e5, "gpu_us": 1740, "idle_us": 10},
        {"output_tokens": 129, "wall_us": 7.4e5, "gpu_us": 5068, "idle_us": 138},
    ]
    assert found["wall_us"] == pytest.approx({"prefill": 5e5, "decode_step": 625})
    assert found["gpu_us"] == {"prefill": 100, "decode_step": 52}
    assert found["idle_us"] == {"prefill": 8, "decode_step": 2}
    assert found["prefill"] == [{"kernel": "gemm", "calls": 4, "us": 100.0}]
    assert found["decode_step"] == [
        {"kernel": "decode", "calls": 1, "us": 30.0},
        {"kernel": "gemm", "calls": 2, "us": 20.0},
        {"kernel": "late", "calls": 1, "us": 2.0},
    ]


def test_kernels_that_overlap_share_their_time():
    events = [("wait", 2.0, 9.0), ("gemm", 0.0, 8.0), ("wait", 12.0, 13.0), ("copy", 12.5, 12.75)]
    found = vllm_worker.exclusive_times(events)
    assert found == {"idle": (1, 3.0), "gemm": (1, 8.0), "wait": (2, 2.0), "copy": (1, 0.0)}
    assert sum(us for _, us in found.values()) == 13.0


@pytest.mark.parametrize(
    "more, said",
    [
        ("sys.exit('ValueError: no such GPU')", "ended with 1: ValueError: no such GPU"),
        ("response['format'] = 7", "format 7, wanted 1"),
        ("response['results'][0]['seconds'] = [0.0]", "they must be positive"),
        ("response['results'][0]['generated'] = 5", "generated 5 tokens instead of 32768"),
        ("response['results'].reverse()", "ValueError: loads"),
        ("response = []", "TypeError"),
    ],
)
def test_an_answer_that_is_none_is_no_measurement(worker, more, said):
    worker(more)
    records = serving_records([JOB], {}, 0)
    assert {record.status for record in records} == {"skipped"}
    assert said in records[0].reason


def test_a_load_that_failed_leaves_the_others(worker):
    worker("response['results'][0] = request['loads'][0] | {'error': 'OutOfMemoryError: no'}")
    failed, other = by_metric(serving_records([JOB], {}, 0), "tokens_per_s")
    assert (failed.status, failed.reason) == ("failed", "OutOfMemoryError: no")
    assert other.status == "ok"


def test_a_worker_that_was_killed_keeps_what_it_measured(worker):
    worker("response['results'].pop()")
    kept, lost = by_metric(serving_records([JOB], {}, 0), "tokens_per_s")
    assert kept.status == "ok"
    assert lost.status == "failed"
    assert "the worker ended with 0" in lost.reason


def test_missing_engines_say_how_to_get_them(monkeypatch):
    monkeypatch.setattr(capability, "detect", lambda: GPU)
    monkeypatch.delenv(engines.PYTHON, raising=False)
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    monkeypatch.setattr(trtllm.shutil, "which", lambda name: None)
    for engine, said in (
        ("vllm-bf16", "vLLM is not here; install vLLM 0.24"),
        ("trtllm-fp16", "TensorRT-LLM not found"),
        ("qserve", "comet bench serving --recorded"),
    ):
        (record, *_) = serving_records([ServingJob("LLaMA-3-8B", engine, LOADS)], {}, 0)
        assert record.status == "skipped"
        assert said in record.reason


def test_without_a_gpu_nothing_is_started(monkeypatch):
    monkeypatch.setattr(capability, "detect", lambda: GPU | {"gpu": None, "gpu_missing": "no GPU"})
    records = serving_records([JOB], {}, 0)
    assert [record.status for record in records] == ["skipped"] * 2
    assert records[0].reason.startswith("no GPU")
