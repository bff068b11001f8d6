# SPDX-License-Identifier: Apache-2.0
"""docs/cluster.md, the cluster profile and the container: what they say is so."""

import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from runner import REPOSITORY, environment, snakemake

PAGE = (REPOSITORY / "docs" / "cluster.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE, re.S | re.M)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]
PROFILE = REPOSITORY / "workflow" / "profiles" / "slurm" / "profile.yaml"


def starting_with(word: str) -> list[str]:
    found = [line for line in COMMANDS if line.startswith(word)]
    assert found, word
    return found


@pytest.mark.parametrize("line", starting_with("snakemake"))
def test_snakemake_commands_resolve(tmp_path, line):
    arguments = shlex.split(line)[1:]
    done = snakemake("--dry-run", "--directory", str(tmp_path), *arguments_after(arguments))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "This was a dry-run" in done.stdout + done.stderr


def arguments_after(arguments: list[str]) -> list[str]:
    """Without --dry-run, and with the configuration that a working directory elsewhere lacks."""
    kept = [word for word in arguments if word != "--dry-run"]
    position = kept.index("--configfile") + 1
    return [*kept[:position], "config/config.yaml", *kept[position:]]


def test_bundle_commands_install_offline(tmp_path):
    index = tmp_path / "index"
    index.mkdir()
    with zipfile.ZipFile(index / "apple-1.0-py3-none-any.whl", "w") as wheel:
        info = "apple-1.0.dist-info"
        wheel.writestr("apple.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: apple\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    (tmp_path / "requirements-cuda12.txt").write_text("apple==1.0\n-e .\n", encoding="utf-8")
    (bundling,) = starting_with("comet bundle")
    (installing,) = starting_with("sh bundle/install.sh")
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    for line in (
        bundling.replace("comet", f"{sys.executable} -m comet.cli", 1),
        installing.replace("python3", sys.executable),
        ".venv/bin/python -c 'import apple'",
    ):
        done = subprocess.run(
            shlex.split(line),
            cwd=tmp_path,
            env=environment(**offline),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (line, done.stdout + done.stderr)
    assert sorted(os.listdir(tmp_path / "bundle"))[0] == "SHA256SUMS"


def rules_with_a_gpu() -> set[str]:
    names = set()
    for path in REPOSITORY.glob("workflow/rules/*.smk"):
        for rule in re.split(r"^rule ", path.read_text(), flags=re.MULTILINE)[1:]:
            if re.search(r"^\s+gpu=", rule, re.MULTILINE):
                names.add(rule.split(":")[0])
    return names


def test_every_rule_with_a_gpu_gets_one_from_the_profile():
    resources = yaml.safe_load(PROFILE.read_text(encoding="utf-8"))["set-resources"]
    with_gpu = rules_with_a_gpu()
    assert {"measure_gemm", "quantize_model", "evaluate"} <= with_gpu
    named = {name for name, values in resources.items() if "gpu" in values}
    assert named == with_gpu, "rules with a GPU and set-resources of the cluster profile differ"
    for name in with_gpu:
        asked = resources[name]
        assert (asked["slurm_partition"], asked["gpu"], asked["gpu_model"]) == ("gpu", 1, "a100")
        assert "attempt" in str(asked["runtime"]) and "attempt" in str(asked["mem_mb"])


def test_another_site_is_two_lines():
    text = PROFILE.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for word in ("partition", "gpu_model"):
        assert all(line.endswith("# SITE") for line in lines if word in line)
    assert sum("# SITE" in line for line in lines) == 2


def test_the_container_installs_what_it_names():
    text = (REPOSITORY / "container" / "comet.def").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", text, re.S | re.M))
    assert set(sections) >= {"arguments", "files", "post", "environment", "test", "runscript"}
    (name, default) = sections["arguments"].strip().split("=")
    assert set(re.findall(r"\{\{ (\w+) \}\}", text)) == {name}
    for file in (default, "requirements.txt"):
        assert (REPOSITORY / file).is_file()
        assert file in PAGE
    for section in ("post", "environment", "test", "runscript"):
        done = subprocess.run(["sh", "-n"], input=sections[section], text=True, check=False)
        assert done.returncode == 0, section
    assert re.search(r"^From: python:3\.1[1-3]-", text, re.M)
    assert "container/comet.def" in PAGE and Path(REPOSITORY, "container/comet.def").exists()
