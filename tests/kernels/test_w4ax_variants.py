# SPDX-License-Identifier: Apache-2.0
"""Build variants of the sm_90a kernel: without its pipeline, its weight order, its conversion."""

import shutil

import pytest

from comet.errors import UserError
from comet.kernels.build import SOURCES, build
from comet.kernels.library import ENVIRONMENT, library_path
from comet.kernels.variants import FULL, VARIANTS, using, variant_path

ONE = """// SPDX-License-Identifier: Apache-2.0
#include "comet/sm90/instances.cuh"
COMET_W4AX_INSTANTIATE(T64k2)
"""


@pytest.mark.slow
@pytest.mark.build
@pytest.mark.parametrize("name", VARIANTS)
def test_builds_do_not_spill(toolchain, tmp_path, name):
    sources = tmp_path / "csrc"
    shutil.copytree(SOURCES / "include", sources / "include")
    (sources / "sm90").mkdir()
    (sources / "sm90" / "one.cu").write_text(ONE)
    info = build(tmp_path, 1, VARIANTS[name], archs=("90a",), sources=sources)
    assert info["defines"] == {macro: str(value) for macro, value in VARIANTS[name].items()}
    (kernel,) = info["kernels"]["sm90/one.cu"]
    assert kernel["spill_stores"] == kernel["spill_loads"] == 0


def test_variants_lie_beside_the_library_in_use(monkeypatch, tmp_path):
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "lib.so"))
    assert variant_path(FULL) == tmp_path / "lib.so"
    assert variant_path("naive-conversion") == tmp_path / "variants/naive-conversion/lib.so"
    with pytest.raises(UserError, match="variant 'fast' is unknown; use one of full, without-pipe"):
        variant_path("fast")


def test_another_library_is_in_use_for_a_while(monkeypatch, tmp_path):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    before = library_path()
    with using(tmp_path / "other.so"):
        assert library_path() == tmp_path / "other.so"
    assert library_path() == before
