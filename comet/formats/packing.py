# SPDX-License-Identifier: Apache-2.0
"""Two 4-bit codes in one byte."""

import torch


def pack_int4(codes: torch.Tensor) -> torch.Tensor:
    """Pack unsigned 4-bit codes along the last dimension; the even element is the low nibble.

    Args:
        codes: integer [..., n], values 0..15, n even.

    Returns:
        uint8 [..., n / 2].

    Raises:
        ValueError: odd length or a code outside 0..15.
    """
    if codes.shape[-1] % 2:
        raise ValueError(f"cannot pack an odd number of codes ({codes.shape[-1]})")
    if codes.numel() and (int(codes.min()) < 0 or int(codes.max()) > 15):
        raise ValueError(f"codes span {int(codes.min())}..{int(codes.max())}, not within 0..15")
    codes = codes.to(torch.uint8)
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_int4(packed: torch.Tensor) -> torch.Tensor:
    """Inverse of ``pack_int4``: uint8 [..., n / 2] to uint8 [..., n] with values 0..15."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)
