# SPDX-License-Identifier: Apache-2.0
"""The 4-bit KV cache for ``generate`` of Hugging Face transformers: ``past_key_values=KV4Cache()``.

It keeps what the KV4 format keeps (``comet.formats.kv4``) and gives attention restored values, so
that every model, mask and attention implementation works with it. It saves memory; speed is what
the paged kernels inside vLLM are for.
"""

import torch
from transformers.cache_utils import Cache, DynamicLayer

from comet.formats.kv4 import PAGE, KV4Codes, quantize_k_page, quantize_v


class KV4Layer(DynamicLayer):
    """K and V of one decoder layer: full pages of K and all of V in 4 bit, the unfinished page of K
    in 16 bit.

    New tokens are returned as they came; from the next call on they are read as the cache holds
    them.
    """

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._clear()

    def _clear(self) -> None:
        self._pages: KV4Codes | None = None
        self._codes: KV4Codes | None = None
        self._length = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add tokens; K and V of all tokens so far.

        Args:
            key_states, value_states: [batch, kv_heads, new tokens, D].

        Returns:
            Twice [batch, kv_heads, tokens, D] in the type of the new tokens.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        earlier = self._restored(key_states.dtype)
        self._length += key_states.shape[-2]
        self._keep(key_states, value_states)
        if earlier is None:
            return key_states, value_states
        keys, values = earlier
        return (
            torch.cat((keys, key_states), dim=-2),
            torch.cat((values, value_states), dim=-2),
        )

    def _keep(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        # ``keys`` of the base class holds the unfinished page.
        tail = torch.cat((self.keys, keys), dim=-2) if self.keys.numel() else keys
        sealed = tail.shape[-2] // PAGE * PAGE
        if sealed:
            pages = quantize_k_page(tail[..., :sealed, :].unflatten(-2, (-1, PAGE)))
            self._pages = _joined(self._pages, pages, dim=-3)
        self.keys = tail[..., sealed:, :].clone()
        self._codes = _joined(self._codes, quantize_v(values), dim=-2)

    def _restored(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor] | None:
        if self._codes is None:
            return None
        values = self._codes.dequantize().to(dtype)
        if self._pages is None:
            return self.keys, values
        pages = self._pages.dequantize().flatten(-3, -2).to(dtype)
        return torch.cat((pages, self.keys), dim=-2), values

    def get_seq_length(self, *_: object) -> int:
        """Tokens in the cache."""
        return self._length

    def reset(self) -> None:
        """Forget everything."""
        self._clear()
        self.keys = self.values = None
        self.is_initialized = False

    def crop(self, *_: object) -> None:
        """Not possible.

        Raises:
            ValueError: always; a full page cannot be reopened.
        """
        raise ValueError("a KV4 cache cannot be cropped: full pages are kept in 4 bit alone")

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence."""
        self._each(lambda part: part.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some sequences."""
        self._each(lambda part: part[indices])

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Order sequences as beams."""
        self._each(lambda part: part.index_select(0, beam_idx.to(part.device)))

    def _each(self, change) -> None:
        if self._codes is None:
            return
        self.keys = change(self.keys)
        self._codes = _changed(self._codes, change)
        self._pages = None if self._pages is None else _changed(self._pages, change)

    def nbytes(self) -> int:
        """Bytes of K and V in this cache."""
        parts = [self.keys] if self.is_initialized else []
        for codes in (self._pages, self._codes):
            parts += [] if codes is None else [codes.packed, codes.scale, codes.zero]
        return sum(part.nbytes for part in parts)


class KV4Cache(Cache):
    """A cache whose layers are made when they are first used."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=KV4Layer)

    def nbytes(self) -> int:
        """Bytes of K and V in all layers."""
        return sum(layer.nbytes() for layer in self.layers)


def _joined(one: KV4Codes | None, other: KV4Codes, dim: int) -> KV4Codes:
    if one is None:
        return other
    parts = zip(_parts(one), _parts(other), strict=True)
    return KV4Codes(*(torch.cat(pair, dim=dim) for pair in parts))


def _changed(codes: KV4Codes, change) -> KV4Codes:
    return KV4Codes(*map(change, _parts(codes)))


def _parts(codes: KV4Codes) -> tuple[torch.Tensor, ...]:
    return codes.packed, codes.scale, codes.zero
