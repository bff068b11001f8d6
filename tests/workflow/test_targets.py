# SPDX-License-Identifier: Apache-2.0
"""Every named target resolves without running, under every configuration that ships."""

import subprocess
from pathlib import Path

import pytest
from runner import snakemake

TARGETS = (
    *("all", "accuracy", "kernels", "quantize", "memory", "report", "kv4_loss", "table1", "table2"),
    *("fig3", "fig4", "precision_map", "fig9", "fig10", "fig11", "fig12", "fig13", "fig14"),
    *("fig15", "profile", "sm_utilisation", "attention", "attention_speed", "kv_memory"),
)


def dry_run(directory: Path, *arguments: str) -> subprocess.CompletedProcess:
    return snakemake("--directory", str(directory), "--dry-run", "--quiet", "rules", *arguments)


@pytest.mark.parametrize("config", ["config", "paper", "h200"])
def test_all_targets_resolve(tmp_path, config):
    files = ("--configfile", "config/config.yaml", f"config/{config}.yaml", "--", *TARGETS)
    done = dry_run(tmp_path, *files)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("scope", ["full", "gpu"])
def test_the_accuracy_study_resolves_under_its_configuration_only(tmp_path, scope):
    target, file = f"accuracy_{scope}", f"config/accuracy_{scope}.yaml"
    own = ("--configfile", "config/config.yaml", file, "--", target, "report")
    done = dry_run(tmp_path, *own)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "audit_protocol" in done.stdout and "compare_kv_caches" in done.stdout
    refused = dry_run(tmp_path, "--configfile", "config/config.yaml", "--", target)
    assert refused.returncode == 1
    assert f"{target} --configfile {file}" in refused.stdout + refused.stderr


def test_smoke_resolves_under_its_configuration_only(tmp_path):
    small = ("--configfile", "config/config.yaml", "config/smoke.yaml", "--", "smoke")
    assert dry_run(tmp_path, *small).returncode == 0
    refused = dry_run(tmp_path, "--configfile", "config/config.yaml", "--", "smoke")
    assert refused.returncode == 1
    assert "smoke --configfile config/smoke.yaml" in refused.stdout + refused.stderr


def test_no_compiler_is_told_before_any_job(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    refused = dry_run(tmp_path, "--configfile", "config/config.yaml", "--", "kernels")
    assert refused.returncode == 1
    assert "no C++ compiler" in refused.stdout + refused.stderr
