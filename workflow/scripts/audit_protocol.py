# SPDX-License-Identifier: Apache-2.0
"""Score one row of one model in every way of the protocol audit."""

from pathlib import Path

import torch

from comet.accuracy.protocol import Audit, audit_protocol
from comet.logs import logged
from comet.measurements import write_records
from comet.speed.lease import job_gpu

with logged(snakemake), job_gpu(snakemake, timed=False):
    torch.set_num_threads(snakemake.threads)
    params, config = snakemake.params, snakemake.config
    text = config["accuracy"]["texts"][0]
    checkpoint = Path(snakemake.input.checkpoint) if snakemake.input.checkpoint else None
    audit = Audit(
        backend=params.audited["row"],
        model=params.audited["model"],
        model_folder=Path(snakemake.input.model).parent,
        checkpoint=checkpoint.parent if checkpoint and checkpoint.is_file() else checkpoint,
        dataset=text,
        text=Path(snakemake.input.text),
        joiner=config["texts"][text]["joiner"],
        context=params.context,
        contexts=tuple(params.protocol["contexts"]),
        tokens=params.protocol["tokens"],
        device=params.device,
        dtype=params.dtype,
    )
    write_records(snakemake.output[0], audit_protocol(audit, config, params.seed))
