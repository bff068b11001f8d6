# SPDX-License-Identifier: Apache-2.0
"""Tiny models as fixtures."""

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
