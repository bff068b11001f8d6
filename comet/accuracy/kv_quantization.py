# SPDX-License-Identifier: Apache-2.0
"""Ways to keep K and V in few bits, as plain torch: the kernels implement the default alone."""

from dataclasses import asdict, dataclass

import torch

from comet.formats.kv4 import PAGE

GRANULARITIES = ("channel", "token", "tensor")


@dataclass(frozen=True)
class KVQuantization:
    """How the K and V of a decoder layer are stored.

    Attributes:
        key_bits, value_bits: bits of a code, 2 to 8; 16 leaves the tensor as it is.
        key_granularity, value_granularity: what shares one scale. ``channel``: a channel of a head
            within a page of tokens (the unfinished page stays in 16 bit); ``token``: a token and
            head; ``tensor``: the whole tensor of a sequence, the best that one static scale can do.
        page: tokens of a page, for ``channel``.
        group: channels that share a scale within a ``token`` and head; None for the whole head.
        symmetric: no zero point; a scale of absmax / (2^(bits-1) - 1).
        clip: the range is this share of what is seen.
        before_rope: K is quantized before its rotary embedding, which is applied when it is read.
        hadamard: Q and K are rotated by an orthonormal Hadamard of each head, after RoPE; the
            scores stay the same and K has no outlier channels (QuaRot).
    """

    key_bits: int = 4
    value_bits: int = 4
    key_granularity: str = "channel"
    value_granularity: str = "token"
    page: int = PAGE
    group: int | None = None
    symmetric: bool = False
    clip: float = 1.0
    before_rope: bool = False
    hadamard: bool = False

    def __post_init__(self) -> None:
        for bits in (self.key_bits, self.value_bits):
            if bits != 16 and not 2 <= bits <= 8:
                raise ValueError(f"{bits} bits of K or V; allowed are 2 to 8, or 16")
        for granularity in (self.key_granularity, self.value_granularity):
            if granularity not in GRANULARITIES:
                raise ValueError(f"granularity {granularity!r} is not one of {GRANULARITIES}")
        if self.before_rope and self.hadamard:
            raise ValueError("a Hadamard of K acts after RoPE, so K cannot be stored before it")

    def as_dict(self) -> dict:
        """The options as plain JSON types."""
        return asdict(self)

    @property
    def key_page(self) -> int:
        """Tokens of K that stay in 16 bit until they are complete; 1 where none do."""
        return self.page if self.key_granularity == "channel" and self.key_bits < 16 else 1

    def restore_keys(self, keys: torch.Tensor) -> torch.Tensor:
        """What keys [batch, kv_heads, tokens, D] read back as."""
        return self._restore(keys, self.key_bits, self.key_granularity)

    def restore_values(self, values: torch.Tensor) -> torch.Tensor:
        """What values [batch, kv_heads, tokens, D] read back as."""
        return self._restore(values, self.value_bits, self.value_granularity)

    def _restore(self, x: torch.Tensor, bits: int, granularity: str) -> torch.Tensor:
        if bits == 16:
            return x
        if granularity == "tensor":
            return self._round(x, bits, (1, 2, 3))
        if granularity == "token":
            grouped = x.unflatten(-1, (-1, self.group or x.shape[-1]))
            return self._round(grouped, bits, (-1,)).flatten(-2)
        sealed = x.shape[-2] // self.page * self.page
        pages = x[..., :sealed, :].unflatten(-2, (-1, self.page))
        restored = self._round(pages, bits, (-2,)).flatten(-3, -2)
        return torch.cat((restored, x[..., sealed:, :]), dim=-2)

    def _round(self, x: torch.Tensor, bits: int, dims: tuple[int, ...]) -> torch.Tensor:
        """Quantize and restore; scale and zero are fp16, as beside the page of the KV4 format."""
        y = x.float()
        if self.symmetric:
            most = 2 ** (bits - 1) - 1
            scale = _fp16_scale(self.clip * y.abs().amax(dim=dims, keepdim=True) / most)
            return ((y / scale).round().clamp(-most, most) * scale).to(x.dtype)
        low, high = y.amin(dim=dims, keepdim=True), y.amax(dim=dims, keepdim=True)
        if self.clip != 1.0:
            low, high = low * self.clip, high * self.clip
        most = 2**bits - 1
        scale = _fp16_scale((high - low) / most)
        zero = low.to(torch.float16).float()
        return (((y - zero) / scale).round().clamp(0, most) * scale + zero).to(x.dtype)


def _fp16_scale(scale: torch.Tensor) -> torch.Tensor:
    scale = scale.to(torch.float16)
    return torch.where(scale > 0, scale, torch.ones_like(scale)).float()
