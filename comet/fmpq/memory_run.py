# SPDX-License-Identifier: Apache-2.0
"""The claim that peak memory is one decoder layer plus activations, put to a random model."""

import shutil
from pathlib import Path

from comet.fmpq.memory import projected_records
from comet.fmpq.options import FMPQOptions
from comet.fmpq.pipeline import Calibration, quantize_model
from comet.measurements import Measurement
from comet.models.entries import ModelEntry
from comet.models.folder import ModelFolder
from comet.models.prepare import prepare_model
from comet.models.random_weights import check_space, random_shapes

# The 16-bit weights, and beside them the checkpoint: 4 bits a weight, embedding and head in 16.
DISK = 1.4


def measure_memory(
    entry: ModelEntry,
    calibration: Calibration,
    workspace: Path,
    projected: dict,
    config: dict,
    seed: int,
    device: str,
) -> list[Measurement]:
    """Write a random model, quantize it, remove both, and project other shapes.

    Args:
        entry: a model whose source is of kind ``random``.
        calibration: text, and how much of it.
        workspace: folder for the model and its checkpoint; what is there is removed first.
        projected: ``shapes``, ``windows`` and ``context`` of the modelled records.
        config, seed, device: as in ``quantize_model``.

    Returns:
        ``peak_memory`` and ``quantize_time`` of the model, and a modelled ``peak_memory`` of the
        same and of each projected shape. What random weights say of a layer is left out.

    Raises:
        UserError: too little space on the disk.
    """
    shutil.rmtree(workspace, ignore_errors=True)
    check_space(random_shapes(entry.source), workspace, DISK)
    try:
        prepare_model(entry, {}, workspace / entry.id, workspace)
        records = quantize_model(
            ModelFolder(workspace / entry.id),
            calibration,
            workspace / "checkpoint",
            FMPQOptions.from_config(config["fmpq"]),
            checkpoint="fmpq",
            model=entry.id,
            config=config,
            seed=seed,
            device=device,
            dtype=config["accuracy"]["dtype"],
        )
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
    measured = [record for record in records if record.case["layer"] == "all"]
    common = {"environment": measured[0].environment, "provenance": measured[0].provenance}
    same = projected_records(
        [entry.source["shape"]], calibration.windows, calibration.context, **common
    )
    larger = projected_records(
        projected["shapes"], projected["windows"], projected["context"], **common
    )
    return measured + same + larger
