# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of many machines: which targets run, which do not, and what to do."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from doctor_machines import A100, LAPTOP, diagnose, gpu, targets_of
from jsonschema import Draft202012Validator

from comet import doctor, hints
from comet.cli import main
from comet.doctor import costs, machine, rivals
from comet.figures import FIGURES

REPOSITORY = Path(__file__).resolve().parents[1]
SCHEMA = yaml.safe_load((REPOSITORY / "workflow" / "schemas" / "doctor.schema.yaml").read_text())
NO_COMPILER = {
    "cxx": None,
    "nvcc": None,
    "nvcc_version": None,
    "compiler_missing": "no C++ compiler: g++ is not on PATH; install it",
}
OLD_DRIVER = A100 | {"driver": "535.183.06"}
MACHINES = {
    "laptop": LAPTOP,
    "a100": A100,
    "a100 with an old driver": OLD_DRIVER,
    "a100 with a torch for processors": A100 | {"torch": "2.13.0+cpu", "torch_cuda": None},
    "no compiler": LAPTOP | NO_COMPILER,
    "full disk": LAPTOP | {"disk_free_gib": 0.9},
    "little memory": LAPTOP | {"memory_gib": 3.0},
    "packages are missing": LAPTOP | {"packages_missing": ["snakemake", "torch"], "torch": None},
    "counters refused": A100 | {"counters": {"ncu": "/usr/bin/ncu", "permitted": False}},
    "turing": gpu(name="Tesla T4", compute_capability="7.5"),
    "busy": gpu(used_by=["pid 4711 (python train.py, 71.0 GiB)"]),
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_report_has_its_form_and_fits_a_terminal(monkeypatch, tmp_path, name):
    report = diagnose(monkeypatch, MACHINES[name], tmp_path)
    Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(report)))
    for line in doctor.as_text(report).splitlines():
        assert len(line) <= 80 or len(line.split()) <= 2 or "snakemake" in line, line


def test_every_problem_of_a_target_says_what_to_do(monkeypatch, tmp_path):
    for facts in MACHINES.values():
        report = diagnose(monkeypatch, facts, tmp_path)
        for name, problem in report["problems"].items():
            if problem["blocks"] or problem["skips"]:
                assert problem["get"] or ";" in problem["what"], name


def test_a_laptop_runs_all_but_what_needs_a_gpu(monkeypatch, tmp_path):
    report = diagnose(monkeypatch, LAPTOP, tmp_path)
    targets = targets_of(report)
    assert report["runs"]
    assert targets["all"]["state"] == "partly"
    assert targets["accuracy"]["state"] == targets["kernels"]["state"] == "runs"
    assert targets["fig9"]["skips"] == {"gpu": ["times of the linear layers"]}
    assert report["problems"]["gpu"]["get"] == hints.GPU
    text = doctor.as_text(report)
    assert "GPU             none: no NVIDIA driver answers" in text
    assert text.splitlines()[-1] == "all runs in part on this machine: snakemake --cores all"


def test_an_a100_runs_everything(monkeypatch, tmp_path):
    report = diagnose(monkeypatch, A100, tmp_path)
    states = {name: row["state"] for name, row in targets_of(report).items()}
    assert states["fig9"] == states["profile"] == states["accuracy"] == "runs"
    assert set(targets_of(report)["all"]["skips"]) <= {"rival:vllm"}
    assert targets_of(report)["fig9"]["minutes_from"].startswith("as on an H200")
    assert "device" not in report["problems"]


def test_inputs_need_neither_gpu_nor_compiler(monkeypatch, tmp_path):
    configs = [REPOSITORY / "config" / "paper.yaml"]
    facts = LAPTOP | NO_COMPILER | {"disk_free_gib": 4000.0}
    report = diagnose(monkeypatch, facts, tmp_path, target="inputs", configs=configs)
    assert targets_of(report)["inputs"]["state"] == "runs"
    assert targets_of(report)["accuracy"]["blocked_by"] == ["device"]


def test_a_driver_that_is_too_old_for_torch(monkeypatch, tmp_path):
    report = diagnose(monkeypatch, OLD_DRIVER, tmp_path)
    targets, problems = targets_of(report), report["problems"]
    assert targets["accuracy"]["blocked_by"] == ["device"]
    assert not report["runs"]
    assert "CUDA 13.0 needs 580 or newer" in problems["driver"]["what"]
    assert "pip install -r requirements-cuda12.txt" in problems["driver"]["get"]
    assert "--config device=cpu" in problems["device"]["get"]
    assert "does not load under driver 535" in problems["nvcc"]["what"]
    assert targets["kernels"]["state"] == "runs"
    repaired = OLD_DRIVER | {
        "torch": "2.13.0+cu126",
        "torch_cuda": "12.6",
        "nvcc_version": "12.4.1",
    }
    assert diagnose(monkeypatch, repaired, tmp_path)["runs"]


def test_a_driver_that_is_too_old_for_both_requirements_files(monkeypatch, tmp_path):
    report = diagnose(monkeypatch, A100 | {"driver": "470.256.02"}, tmp_path)
    assert "needs 525 or newer, requirements.txt 580" in report["problems"]["driver"]["get"]


def test_an_nvcc_that_is_too_new_for_the_driver_leaves_out_the_kernels(monkeypatch, tmp_path):
    facts = OLD_DRIVER | {"torch_cuda": "12.6"}
    fig9 = targets_of(diagnose(monkeypatch, facts, tmp_path))["fig9"]
    assert fig9["skips"]["nvcc"] == ["gemm of comet's kernels"]


@pytest.mark.parametrize(
    ("driver", "file"),
    [
        (None, "requirements.txt"),
        ("580.82", "requirements.txt"),
        ("575.57.08", "requirements-cuda12.txt"),
    ],
)
def test_the_requirements_file_follows_the_driver(driver, file):
    assert machine.requirements_for(driver) == file


def test_a_torch_without_cuda_beside_a_gpu(monkeypatch, tmp_path):
    facts = MACHINES["a100 with a torch for processors"]
    report = diagnose(monkeypatch, facts, tmp_path, target="fig9")
    problem = report["problems"]["torch-cuda"]
    assert "this torch (2.13.0+cpu) has no CUDA" in problem["what"]
    assert problem["get"] == "install a torch with CUDA: pip install -r requirements.txt"
    assert targets_of(report)["fig9"]["state"] == "partly"
    assert targets_of(report)["accuracy"]["state"] == "blocked"


def test_without_a_compiler_nothing_that_needs_the_library_runs(monkeypatch, tmp_path):
    report = diagnose(monkeypatch, MACHINES["no compiler"], tmp_path, target="kernels")
    blocked = report["problems"]["compiler"]["blocks"]
    assert {"all", "kernels", "fig9", "report"} <= set(blocked)
    assert not {"accuracy", "table1", "inputs"} & set(blocked)
    assert doctor.as_text(report).endswith("kernels cannot run on this machine.")


def test_a_disk_that_is_nearly_full(monkeypatch, tmp_path):
    report = diagnose(monkeypatch, MACHINES["full disk"], tmp_path)
    targets = targets_of(report)
    assert targets["accuracy"]["blocked_by"] == ["disk"]
    assert set(targets["memory"]["blocked_by"]) == {"disk", "target:memory"}
    assert targets["kernels"]["state"] == "runs"
    assert (
        "needs about 3 GB of disk, 0.0 GB are written, 1.0 GB are free"
        in (report["problems"]["disk"]["what"])
    )


def test_models_that_are_larger_than_the_gpu(monkeypatch, tmp_path):
    configs = [REPOSITORY / "config" / "paper.yaml"]
    report = diagnose(monkeypatch, A100, tmp_path, configs=configs)
    problem = report["problems"]["model-memory"]
    assert re.search(r"the GPU has 86 GB for .*llama-3-70b \(14\d GB\)", problem["what"])
    assert "llama-1-30b" not in problem["what"]
    targets = targets_of(report)
    assert targets["accuracy"]["blocked_by"] == ["model-memory"]
    assert targets["quantize"]["state"] == "runs"


def test_little_memory_is_a_note(monkeypatch, tmp_path):
    targets = targets_of(diagnose(monkeypatch, MACHINES["little memory"], tmp_path))
    assert targets["accuracy"]["state"] == "runs"
    assert targets["accuracy"]["note"] == "needs about 5 GB of memory, 3.2 GB are there"


def test_missing_packages_block_all(monkeypatch, tmp_path):
    report = diagnose(monkeypatch, MACHINES["packages are missing"], tmp_path)
    assert {row["state"] for row in report["targets"]} == {"blocked"}
    assert report["problems"]["packages"]["what"].endswith("missing: snakemake, torch")


@pytest.mark.parametrize("module", ["comet.config", "comet.doctor.targets"])
def test_packages_that_the_doctor_itself_needs(monkeypatch, tmp_path, module):
    monkeypatch.setitem(sys.modules, module, None)
    facts = LAPTOP | {"packages_missing": ["jsonschema"]}
    report = diagnose(monkeypatch, facts, tmp_path)
    assert not report["runs"]
    assert all(row["blocked_by"] == ["packages"] for row in report["targets"])
    text = doctor.as_text(report)
    assert "[1] Python packages are missing: jsonschema" in text
    assert "pip install -r requirements.txt" in text


def test_refused_counters_leave_the_rest_of_a_profile(monkeypatch, tmp_path):
    report = diagnose(monkeypatch, MACHINES["counters refused"], tmp_path)
    assert targets_of(report)["profile"]["skips"] == {"counters": ["hardware counters"]}
    assert "NVreg_RestrictProfilingToAdminUsers=0" in report["problems"]["counters"]["get"]


def test_a_gpu_before_ampere(monkeypatch, tmp_path):
    report = diagnose(monkeypatch, MACHINES["turing"], tmp_path)
    assert targets_of(report)["fig9"]["skips"] == {"architecture": ["gemm of comet's kernels"]}
    assert "Tesla T4 has compute capability 7.5" in report["problems"]["architecture"]["what"]


def test_a_library_without_the_code_of_this_gpu(monkeypatch, tmp_path):
    file = tmp_path / "hopper.yaml"
    file.write_text("kernels: {architectures: [sm_90a]}\n")
    report = diagnose(monkeypatch, A100, tmp_path, configs=[file])
    assert report["problems"]["architecture"]["what"].endswith("NVIDIA A100-SXM4-80GB needs sm_80")


def test_a_busy_gpu_blocks_timed_targets_unless_it_may_be_shared(monkeypatch, tmp_path):
    report = diagnose(monkeypatch, MACHINES["busy"], tmp_path)
    targets = targets_of(report)
    assert targets["fig9"]["blocked_by"] == ["busy"]
    assert targets["accuracy"]["state"] == "runs"
    assert "pid 4711 (python train.py, 71.0 GiB)" in doctor.as_text(report)
    file = tmp_path / "share.yaml"
    file.write_text("gpu: {busy: share}\n")
    shared = targets_of(diagnose(monkeypatch, MACHINES["busy"], tmp_path, configs=[file]))
    assert shared["fig9"]["state"] == "runs"


def test_rivals_that_the_configuration_names(monkeypatch, tmp_path):
    for name in ("COMET_VLLM_SITE", "COMET_TRTLLM_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    configs = [REPOSITORY / "config" / "h200.yaml"]
    report = diagnose(monkeypatch, A100, tmp_path, target="fig9", configs=configs)
    assert "gemm of vllm-kernels" in targets_of(report)["fig9"]["skips"]["rival:vllm-kernels"]
    assert "set COMET_VLLM_SITE to its folder" in doctor.as_text(report)


def test_rivals_are_found_where_the_variables_say(monkeypatch, tmp_path):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "_C_stable_libtorch.abi3.so").touch()
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 0.24.1\n")
    python.chmod(0o755)
    monkeypatch.setenv("COMET_VLLM_SITE", str(tmp_path))
    monkeypatch.setenv("COMET_VLLM_PYTHON", str(python))
    monkeypatch.setenv("COMET_TRTLLM_PYTHON", "/usr/bin/false")
    monkeypatch.setenv("COMET_TRTLLM_BENCH", str(python))
    states = rivals.rival_states()
    assert states["vllm-kernels"] == {"found": str(tmp_path), "get": None}
    assert states["vllm"]["found"] == f"vllm 0.24.1, {python}"
    assert states["tensorrt-llm"] == {"found": None, "get": hints.TENSORRT_LLM}
    assert states["trtllm-bench"]["found"] == str(python)


def test_a_variable_that_keeps_vllm_from_comet(monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_PLUGINS", "lora_resolver")
    report = diagnose(monkeypatch, A100, tmp_path, target="serving")
    assert targets_of(report)["serving"]["skips"]["vllm-plugin"] == ["comet inside vLLM"]
    assert "VLLM_PLUGINS is 'lora_resolver'" in doctor.as_text(report)
    monkeypatch.setenv("VLLM_PLUGINS", "lora_resolver,comet")
    assert rivals.plugin_disabled() is None


def test_targets_of_another_configuration(monkeypatch, tmp_path):
    plain = targets_of(diagnose(monkeypatch, LAPTOP, tmp_path))
    assert plain["smoke"]["blocked_by"] == ["target:smoke"]
    assert plain["choices"]["blocked_by"] == ["target:choices"]
    for name in ("smoke", "choices", "accuracy_full"):
        configs = [REPOSITORY / "config" / f"{name}.yaml"]
        report = diagnose(monkeypatch, LAPTOP, tmp_path, target=name, configs=configs)
        assert report["runs"], name
        command = f"snakemake --cores all {name} --configfile {configs[0]}"
        assert doctor.as_text(report).endswith(command)


def test_a_configuration_that_is_wrong_blocks_every_target(monkeypatch, tmp_path):
    file = tmp_path / "wrong.yaml"
    file.write_text("texts: {mine: {label: m, source: {kind: file, path: no.txt, format: text}}}\n")
    report = diagnose(monkeypatch, LAPTOP, tmp_path, configs=[file])
    assert not report["runs"]
    assert "no.txt, which does not exist" in report["problems"]["config"]["what"]
    assert {tuple(row["blocked_by"]) for row in report["targets"]} == {("config",)}


def test_times_are_those_of_earlier_runs_where_there_are_some(monkeypatch, tmp_path):
    before = targets_of(diagnose(monkeypatch, LAPTOP, tmp_path))
    assert before["all"]["minutes_from"].startswith("2 cores, no GPU")
    assert before["quantize"]["minutes"] is None
    folder = tmp_path / "benchmarks" / "local-cpu"
    folder.mkdir(parents=True)
    for checkpoint in ("fmpq", "natural"):
        path = folder / f"quantize-smollm2-135m-{checkpoint}.tsv"
        path.write_text("s\th:m:s\n90.0\t0:01:30\n")
    after = targets_of(diagnose(monkeypatch, LAPTOP, tmp_path))["fig3"]
    assert (after["minutes"], after["minutes_from"]) == (1.5, "earlier runs on this machine")


def test_the_manual_and_the_table_of_costs_agree():
    manual = (REPOSITORY / "config" / "README.md").read_text(encoding="utf-8")
    for cost in costs.cost_table():
        if cost.target == "all":
            assert costs.manual_row(cost) in manual, "config/README.md and comet/doctor/costs.csv"


def test_the_readme_and_the_table_of_costs_agree():
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    times = dict(re.findall(r"^\| `snakemake --cores all(.*?)` \|.*\| (.*?) \|$", readme, re.M))
    for command, configs in (("", []), (" smoke --configfile config/smoke.yaml", ["smoke.yaml"])):
        minutes = costs.cost_of("all", configs).minutes
        assert f"{minutes:g} minutes" in times[command], "README.md and comet/doctor/costs.csv"


def test_the_doctor_knows_every_target():
    from comet.doctor.targets import MAKES

    found = set()
    for path in [REPOSITORY / "workflow" / "Snakefile", *REPOSITORY.glob("workflow/rules/*.smk")]:
        for name, body in re.findall(r"^rule (\w+):\n((?:(?: .*)?\n)*)", path.read_text(), re.M):
            if "output:" not in body:
                found.add(name)
    assert found - set(FIGURES) == set(MAKES), "MAKES of comet/doctor/targets.py"


def test_skipped_records_and_the_doctor_say_the_same():
    from comet.speed import bench, profile_ncu
    from comet.speed.backends import tensorrt_llm

    assert tensorrt_llm.HINT == hints.TENSORRT_LLM
    assert bench.GPU_HINT == hints.GPU
    assert profile_ncu.MISSING_HINT.endswith(hints.COUNTERS_MISSING)
    assert profile_ncu.REFUSED_HINT.endswith(hints.COUNTERS_REFUSED)


@pytest.mark.parametrize(
    ("parameters", "capabilities", "expected"),
    [
        (None, "0", None),
        ("RmProfilingAdminOnly: 0\n", "0", True),
        ("Other: 1\nRmProfilingAdminOnly: 1\n", "0", False),
        ("RmProfilingAdminOnly: 1\n", "000001ffffffffff", True),
    ],
)
def test_permission_to_read_counters(monkeypatch, tmp_path, parameters, capabilities, expected):
    monkeypatch.setattr(machine, "DRIVER_PARAMETERS", tmp_path / "params")
    monkeypatch.setattr(machine, "STATUS", tmp_path / "status")
    (tmp_path / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
    if parameters is not None:
        (tmp_path / "params").write_text(parameters)
    assert machine._permitted() is expected


def test_facts_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "CGROUP_LIMIT", tmp_path / "limit")
    (tmp_path / "limit").write_text(str(2**30))
    facts = machine.machine_facts(tmp_path / "not" / "there")
    assert facts["memory_gib"] == 1.0
    assert facts["disk_free_gib"] > 0
    import torch

    assert (facts["torch"], facts["torch_cuda"]) == (torch.__version__, torch.version.cuda)
    assert "pyyaml" not in facts["packages_missing"]


def test_the_command_and_its_status(capsys, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert main(["doctor", "kernels", "--json", "--no-network"]) == 1
    report = json.loads(capsys.readouterr().out)
    Draft202012Validator(SCHEMA).validate(report)
    assert "no C++ compiler" in report["problems"]["compiler"]["what"]
    assert main(["doctor", "table1", "--no-network"]) == 0
    assert "table1          runs" in capsys.readouterr().out
    assert main(["doctor", "fig99"]) == 1
    assert "did you mean fig9?" in capsys.readouterr().err
