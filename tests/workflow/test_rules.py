# SPDX-License-Identifier: Apache-2.0
"""The workflow's own files: formatted, linted, small, and in agreement with the code."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from runner import snakemake

REPOSITORY = Path(__file__).resolve().parents[2]
WORKFLOW = REPOSITORY / "workflow"
SCHEMA = yaml.safe_load((WORKFLOW / "schemas" / "config.schema.yaml").read_text())


def rule_files() -> list[Path]:
    return [WORKFLOW / "Snakefile", *sorted(WORKFLOW.glob("rules/*.smk"))]


def script_of(rule: str) -> str | None:
    found = re.search(r"scripts/(\w+\.py)", rule)
    return found and found[1]


def rules_with_a_script() -> list[str]:
    texts = (path.read_text() for path in rule_files())
    rules = [rule for text in texts for rule in re.split(r"^rule ", text, flags=re.MULTILINE)[1:]]
    return [rule for rule in rules if script_of(rule)]


def test_files_stay_small():
    assert len((WORKFLOW / "Snakefile").read_text().splitlines()) < 60
    for path in WORKFLOW.glob("scripts/*.py"):
        assert len(path.read_text().splitlines()) < 60, path
    for path in rule_files():
        assert len(path.read_text().splitlines()) < 200, path


def test_rules_hold_no_lambda_checkpoint_or_retry():
    for path in rule_files():
        assert not re.search(
            r"\blambda\b|^\s*checkpoint |^\s*retries:", path.read_text(), re.MULTILINE
        ), path


def test_every_script_sends_its_output_to_the_log():
    for path in WORKFLOW.glob("scripts/*.py"):
        assert "with logged(snakemake)" in path.read_text(), path


def asks_for_a_gpu(rule: str) -> bool:
    return bool(re.search(r"^\s*gpu=", rule, re.MULTILINE))


def test_every_rule_with_a_gpu_leases_it():
    for rule in rules_with_a_script():
        text = (WORKFLOW / "scripts" / script_of(rule)).read_text()
        assert ("job_gpu(snakemake" in text) == asks_for_a_gpu(rule), rule


def test_every_rule_that_computes_for_long_keeps_its_time():
    for rule in rules_with_a_script():
        if asks_for_a_gpu(rule) or script_of(rule) == "build_kernels.py":
            assert re.search(r'^    benchmark:\n +"benchmarks/', rule, re.MULTILINE), rule


def test_retries_stand_in_the_cluster_profile_only():
    profiles = {
        path.parent.name: yaml.safe_load(path.read_text())
        for path in WORKFLOW.glob("profiles/*/profile.yaml")
    }
    assert "retries" not in profiles["default"]
    assert profiles["default"]["resources"] == {"gpu": 1}
    assert profiles["slurm"]["retries"] > 0
    assert all(profile["rerun-incomplete"] for profile in profiles.values())


def test_format():
    pytest.importorskip("snakefmt")
    command = [sys.executable, "-m", "snakefmt.snakefmt", "--check", str(WORKFLOW)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_lint_is_clean():
    done = snakemake("--lint")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Congratulations" in done.stdout + done.stderr


def schema_nodes(node, path="config"):
    """Every described value of the schema with its place."""
    yield path, node
    for key, value in node.get("properties", {}).items():
        yield from schema_nodes(value, f"{path}.{key}")
    for branch in node.get("oneOf", []):
        for key, value in branch["properties"].items():
            if key != "kind":
                yield from schema_nodes(value, f"{path}.{key}")


def test_schema_describes_every_key_and_refuses_others():
    roots = [("config", SCHEMA), *SCHEMA["$defs"].items()]
    for name, root in roots:
        for path, node in schema_nodes(root, name):
            if "$ref" in node:
                continue
            assert node.get("description"), path
            if "properties" in node:
                closed = node.get("additionalProperties", node.get("unevaluatedProperties"))
                assert closed is False, path


def test_schema_agrees_with_the_options_of_the_method():
    from comet.fmpq.options import FMPQOptions

    properties = SCHEMA["$defs"]["fmpq"]["properties"]
    fields = {field.name: field for field in dataclasses.fields(FMPQOptions)}
    assert set(properties) == set(fields)
    for name, node in properties.items():
        for value in node.get("enum", []):
            FMPQOptions(**{name: value})


def test_schema_agrees_with_the_rows():
    from comet.accuracy.rows import ROWS
    from comet.config import checkpoint_of

    assert set(SCHEMA["$defs"]["rows"]["items"]["enum"]) == set(ROWS)
    for name, row in ROWS.items():
        assert checkpoint_of(name) == (row.checkpoint or row.method), name


def test_schema_agrees_with_the_backends():
    from comet.speed.backends import BACKENDS

    assert set(SCHEMA["$defs"]["gemm_backend"]["enum"]) == set(BACKENDS)


def test_schema_agrees_with_attention():
    from comet.speed.attention_cases import BACKENDS, MODELS

    properties = SCHEMA["$defs"]["attention"]["properties"]
    assert properties["models"]["items"]["enum"] == list(MODELS)
    assert properties["backends"]["items"]["enum"] == list(BACKENDS)


def test_schema_agrees_with_models_and_texts():
    from comet.config import FAMILIES
    from comet.data import entries as texts
    from comet.models import entries as models
    from comet.models.families import FAMILIES as KNOWN

    assert set(FAMILIES) == set(KNOWN)
    assert SCHEMA["$defs"]["model"]["properties"]["family"]["enum"] == list(FAMILIES)
    for name, sources, optional in (
        ("model", models.SOURCES, models.SOURCE_OPTIONS),
        ("text", texts.SOURCES, texts.SOURCE_OPTIONS),
    ):
        branches = SCHEMA["$defs"][name]["properties"]["source"]["oneOf"]
        found = {branch["properties"]["kind"]["const"]: branch for branch in branches}
        assert set(found) == set(sources)
        for kind, branch in found.items():
            assert set(branch["required"]) == sources[kind]
            known = sources[kind] | optional.get(kind, set()) | {"kind"}
            assert set(branch["properties"]) == known
