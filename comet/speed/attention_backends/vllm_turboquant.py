# SPDX-License-Identifier: Apache-2.0
"""vLLM's TurboQuant decode attention, its 4-bit preset, without starting vLLM.

Its Triton kernels stand in two Python files of the ``vllm`` package, which are imported with
stand-ins for the parts of vLLM that ask which platform this is. The rotation of the query is part
of the call, as in vLLM. FlashAttention 2, which vLLM's backend needs, serves prefill alone.
"""

import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import torch

from comet.speed.attention_backends import AttentionShape, random_block_table
from comet.speed.backends import Unavailable, Workload
from comet.speed.timer import copies_past_l2
from comet.speed.vllm_site import vllm_file

OPERATORS = "vllm.v1.attention.ops.triton_turboquant_decode"
CENTROIDS = Path("vllm", "model_executor", "layers", "quantization", "turboquant", "centroids.py")
PAGE = 64
BITS = 4
SPLITS = 32  # vLLM's number under CUDA graphs


def four_bit(shape: AttentionShape, device: torch.device) -> Workload:
    """Preset ``turboquant_4bit_nc``: 4-bit rotated keys with norm correction, 4-bit values."""
    attend, centroids_of = _operators(
        vllm_file(Path(*OPERATORS.split(".")).with_suffix(".py"), "vLLM's TurboQuant"),
        vllm_file(CENTROIDS, "vLLM's TurboQuant"),
    )
    dim, pages = shape.head_dim, -(-shape.context // PAGE)
    slot = dim + 6
    size = (shape.batch * pages, PAGE, shape.kv_heads, slot)
    copies = copies_past_l2(shape.batch * pages * PAGE * shape.kv_heads * slot, device)
    caches = [_random_cache(size, dim, device) for _ in range(copies)]
    tables = [random_block_table(shape.batch, pages, device) for _ in range(copies)]
    query = shape.query(device)
    rotation = _hadamard(dim, device)
    fixed = {
        "seq_lens": torch.full((shape.batch,), shape.context, device=device, dtype=torch.int32),
        "Pi": rotation,
        "PiT": rotation,
        "centroids": centroids_of(dim, BITS).to(device=device, dtype=torch.float32),
        "scale": dim**-0.5,
        "mse_bits": BITS,
        "key_packed_size": dim * BITS // 8 + 2,
        "value_quant_bits": BITS,
        "norm_correction": True,
        "mid_o_buf": torch.empty(shape.batch, shape.heads, SPLITS, dim + 1, device=device),
        "output_buf": torch.empty_like(query),
        "lse_buf": torch.empty(shape.batch, shape.heads, device=device),
        "max_num_kv_splits": SPLITS,
    }
    return Workload(
        [
            lambda c=c, t=t: attend(query=query, kv_cache=c, block_table=t, **fixed)
            for c, t in zip(caches, tables, strict=True)
        ],
        details={"copies": copies, "page": PAGE, "splits": SPLITS, "preset": "turboquant_4bit_nc"},
    )


def _random_cache(size: tuple[int, ...], dim: int, device: torch.device) -> torch.Tensor:
    """Random codes; norms, scales and zeros that a real cache may hold."""
    made = torch.randint(0, 256, size, device=device, dtype=torch.uint8)
    for first, low, high in ((dim // 2, 5, 15), (dim + 2, 0.1, 0.3), (dim + 4, -3, -1)):
        made[..., first : first + 2].view(torch.float16).uniform_(low, high)
    return made


def _hadamard(size: int, device: torch.device) -> torch.Tensor:
    """Orthonormal and symmetric, fp32."""
    made = torch.ones(1, 1, device=device)
    while made.shape[0] < size:
        made = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], device=device), made)
    return made / size**0.5


@cache
def _operators(attention: Path, quantizer: Path):
    """The decode attention and the function that makes its centroids, from their files."""
    try:
        import triton
        import triton.language
    except ImportError as error:
        raise Unavailable(f"TurboQuant's kernels need Triton ({error}); install it") from error
    spec = importlib.util.spec_from_file_location("turboquant_centroids", quantizer)
    centroids = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(centroids)
    site = attention.parents[len(OPERATORS.split(".")) - 1]
    with patch.dict(sys.modules, _stand_ins(site, triton)):
        operators = importlib.import_module(OPERATORS)
    return operators.triton_turboquant_decode_attention, centroids.get_centroids


def _stand_ins(site: Path, triton: ModuleType) -> dict[str, ModuleType]:
    """Modules that answer for vLLM while its two files are imported."""
    made = {}
    parts = OPERATORS.split(".")[:-1]
    for end in range(1, len(parts) + 1):
        package = ModuleType(".".join(parts[:end]))
        package.__path__ = [str(Path(site, *parts[:end]))]
        made[package.__name__] = package
    platforms, utilities = ModuleType("vllm.platforms"), ModuleType("vllm.triton_utils")
    platforms.current_platform = SimpleNamespace(
        is_cuda_alike=lambda: True, is_cuda=lambda: True, is_rocm=lambda: False
    )
    utilities.triton, utilities.tl = triton, triton.language
    return made | {module.__name__: module for module in (platforms, utilities)}
