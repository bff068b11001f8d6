# SPDX-License-Identifier: Apache-2.0
"""The pins, the environment file and the README say the same."""

import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent


def pins() -> dict[str, str]:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    found = {}
    for line in lines:
        if line and not line.startswith(("#", "-e")):
            name, version = line.split("==")
            found[normal(name)] = version
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_environment_yml_holds_the_same_pins():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    listed = {normal(line.split("==")[0]): line.split("==")[1] for line in pip}
    assert listed == pins()


def test_every_declared_dependency_is_pinned_within_its_range():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = project["dependencies"] + sum(project["optional-dependencies"].values(), [])
    pinned = pins()
    assert len(declared) > 20
    for requirement in map(Requirement, declared):
        version = pinned.get(normal(requirement.name))
        assert version is not None, f"{requirement.name} is not pinned"
        assert requirement.specifier.contains(version), f"{requirement} excludes {version}"


def test_no_file_names_a_registry_host():
    # Spelled in parts, so that this file names none of them itself.
    parts = (("python", "hosted"), ("py", "pi.org"), ("npm", "js"), ("deb.deb", "ian"))
    names = [re.escape("".join(pair)) for pair in parts]
    hosts = re.compile("|".join(names))
    for path in ("requirements.txt", "environment.yml", "README.md", "pyproject.toml"):
        assert not hosts.search((ROOT / path).read_text(encoding="utf-8")), path


def test_the_two_commands_are_the_first_blocks_of_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:bash|sh)?\n(.*?)^```", readme, re.S | re.M)
    run, test = blocks[0].strip(), blocks[1].strip()
    assert "\n" not in run and "\n" not in test
    assert "requirements.txt" in run and run.endswith("snakemake --cores all")
    assert "requirements.txt" in test and "pytest" in test
