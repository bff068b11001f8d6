# SPDX-License-Identifier: Apache-2.0
"""What an error of each calibration token costs one model's loss."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from comet.data.windows import text_windows
from comet.files import atomic_path
from comet.fmpq.end_loss import token_weights
from comet.logs import logged
from comet.models.arithmetic import tensor_type
from comet.models.folder import ModelFolder
from comet.speed.lease import job_gpu

with logged(snakemake), job_gpu(snakemake, timed=False):
    torch.set_num_threads(snakemake.threads)
    params, config = snakemake.params, snakemake.config
    calibration = params.calibration
    folder = ModelFolder(Path(snakemake.input.model).parent)
    windows = text_windows(
        folder.tokenizer(),
        Path(snakemake.input.text),
        config["texts"][calibration["text"]]["joiner"],
        calibration["context"],
        range(calibration["windows"]),
    )
    found = token_weights(folder, windows, params.device, tensor_type(params.dtype))
    with atomic_path(Path(snakemake.output[0])) as temporary:
        save_file(found, temporary)
