# SPDX-License-Identifier: Apache-2.0
"""A CUDA library for the tests, compiled once by whatever compiler the machine has."""

import shutil

import pytest

from comet.errors import UserError
from comet.kernels.build import ROOT, build
from comet.kernels.library import Library
from comet.kernels.toolchain import find_toolchain


@pytest.fixture(scope="session")
def toolchain():
    """The compiler, or a skip."""
    try:
        return find_toolchain()
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def built_library(toolchain, tmp_path_factory) -> Library:
    """The default library; objects of the workflow's own build are taken over where they fit."""
    out = tmp_path_factory.mktemp("kernels")
    objects = ROOT / "build" / "kernels" / "objects"
    if objects.is_dir():
        shutil.copytree(objects, out / "objects")
    build(out, jobs=2)
    return Library(out / "libcomet_kernels.so")
