# SPDX-License-Identifier: Apache-2.0
"""Names that the rules share: where files lie, and which cases the configuration asks for."""

from dataclasses import asdict
from pathlib import Path

from snakemake.exceptions import WorkflowError

from comet import config as configuration
from comet.data.stock_tasks import harness_installed
from comet.errors import UserError
from comet.figures import FIGURES
from comet.kernels.build import source_files
from comet.kernels.toolchain import find_toolchain
from comet.kernels.variants import VARIANTS
from comet.measurements import KINDS as RECORD_KINDS
from comet.speed import capability, profile_ncu
from comet.speed.serving.cases import engines_named, serving_jobs

REPOSITORY = configuration.REPOSITORY

try:
    configuration.check(config, tuple(FIGURES))
except UserError as error:
    raise WorkflowError(str(error)) from None

CAPABILITY = capability.detect()
COUNTERS = profile_ncu.installed()
SERVING_ENGINES = engines_named()
MACHINE = (
    f"local-{capability.slug(CAPABILITY['gpu'])}"
    if config["machine"] == "auto"
    else config["machine"]
)
DEVICE = config["device"]
if DEVICE == "auto":
    DEVICE = "cuda" if CAPABILITY["gpu"] else "cpu"
ACCURACY = configuration.accuracy_cases(config)
# (model, checkpoint) of FMPQ; the quantized models of other methods are made where a row asks.
CHECKPOINTS = sorted(
    {
        (case["model"], case["checkpoint"])
        for case in ACCURACY.values()
        if case["checkpoint"] in configuration.FMPQ_CHECKPOINTS
    }
)
DRAWN = list(FIGURES) if config["figures"] == "all" else config["figures"]


# A committed reference run has another name, so that no rule can claim it as its output.
wildcard_constraints:
    machine="local-[a-z0-9-]+",
    model="[^/]+",
    text="[^/]+",
    case="[^/]+",
    task="[a-z_]+",
    figure="[a-z0-9_]+",
    kind="[a-z]+",
    start="[^/]+",
    checkpoint="|".join(configuration.FMPQ_CHECKPOINTS),
    method="[a-z0-9-]+",


def result_path(*parts):
    """Pattern of a file of whichever machine a job is for."""
    return str(Path(config["results"], "{machine}", *parts))


def own_path(*parts):
    """Path of a file of this machine."""
    return str(Path(config["results"], MACHINE, *parts))


def resource_path(*parts):
    """Path of a fetched or prepared file."""
    return str(Path(config["resources"], *parts))


def log_path(*parts):
    """Path of a log file."""
    return str(Path("logs", "{machine}", *parts))


def repository_path(*parts):
    """Path of a file that belongs to the repository, wherever snakemake runs."""
    return str(REPOSITORY.joinpath(*parts))


def wheel_path(source):
    """Path of the wheel that a source names."""
    package = source["package"].replace("-", "_")
    return resource_path("downloads", f"{package}-{source['version']}-py3-none-any.whl")


def figure_paths(names):
    """Files of the named figures of this machine."""
    return [own_path("figures", f"{name}.svg") for name in names]
