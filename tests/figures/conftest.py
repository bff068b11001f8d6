# SPDX-License-Identifier: Apache-2.0
"""Published tables and a small file of activation statistics."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

REPOSITORY = Path(__file__).resolve().parents[2]
CHANNELS, TOKENS, OUTLIERS = 300, 24, (5, 130, 290)


@pytest.fixture(scope="session")
def paper() -> Path:
    """Folder of the published tables."""
    return REPOSITORY / "resources" / "paper"


@pytest.fixture(scope="session")
def statistics(tmp_path_factory) -> Path:
    """Two layers of 300 channels: two INT4 blocks, then one INT8 block of 44 outliers."""
    generator = torch.Generator().manual_seed(0)
    tensors, layers = {}, {}
    for layer in (0, 1):
        for name in (f"model.layers.{layer}.attn_in", f"model.layers.{layer}.mlp_out"):
            sample = torch.randn(TOKENS, CHANNELS, generator=generator)
            sample[:, list(OUTLIERS)] *= 30
            statistic = sample.abs().amax(0)
            ranked = statistic.argsort().int()
            permutation = torch.full((384,), -1, dtype=torch.int32)
            permutation[:256] = ranked[:256]
            permutation[256:300] = ranked[256:]
            tensors |= {
                f"{name}.sample": sample.half(),
                f"{name}.channel_stat": statistic,
                f"{name}.perm": permutation,
            }
            layers[name] = {"int4_blocks": 2, "int8_blocks": 1}
    path = tmp_path_factory.mktemp("arrays") / "statistics.safetensors"
    save_file(tensors, path, metadata={"layers": json.dumps(layers)})
    (path.parent / "layers.json").write_text(json.dumps({"model": "tiny"}))
    return path
