# SPDX-License-Identifier: Apache-2.0
"""Parts of vLLM from a folder, without importing vLLM.

``COMET_VLLM_SITE`` names the folder that holds the ``vllm`` package (0.24 was read for signatures).
"""

import os
from functools import cache
from pathlib import Path

import torch

from comet import hints
from comet.speed.backends import Unavailable

SITE = "COMET_VLLM_SITE"


def vllm_file(relative: Path | str, what: str) -> Path:
    """A file of the package.

    Args:
        relative: path inside the folder, ``vllm/...``.
        what: what the file is for, in the message.

    Raises:
        Unavailable: no folder is named, or the file is not in it.
    """
    site = os.environ.get(SITE)
    if not site:
        raise Unavailable(f"{what} is not here; {hints.VLLM_KERNELS}")
    path = Path(site) / relative
    if not path.exists():
        raise Unavailable(f"{path} does not exist; set {SITE} to a folder with vllm 0.24")
    return path


@cache
def load_library(path: Path) -> None:
    """Load a library of torch operators once.

    Raises:
        Unavailable: it does not fit this torch.
    """
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise Unavailable(f"{path} cannot be loaded ({error}); it must match this torch") from error
