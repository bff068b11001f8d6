# SPDX-License-Identifier: Apache-2.0
"""A paged KV4 cache of one layer: which page and which tail belongs to which sequence."""

import torch
from torch import Tensor

from comet.errors import UserError
from comet.formats.kv4 import PAGE, page_bytes
from comet.kernels.kv4 import Plan, kv4_append, kv4_decode, kv4_prefill


class PagedKV4Cache:
    """Pages, tails and block tables, with sequences that come, grow, share pages and go.

    Lengths are kept on the host, so that no call waits for the device. Sequences are numbers below
    ``max_sequences``; a sequence's number is also its tail.

    Attributes:
        cache: uint8 [pages, kv_heads, page_bytes].
        tail: [max_sequences, kv_heads, 64, D] of ``dtype``.
        block_tables: int32 [max_sequences, max_pages].
        lengths: tokens of each live sequence.
    """

    def __init__(
        self,
        pages: int,
        kv_heads: int,
        head_dim: int,
        max_sequences: int,
        max_tokens: int,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ) -> None:
        """Allocate; ``max_tokens`` is the longest sequence. Nothing is written."""
        self.device = torch.device(device)
        options = {"device": self.device}
        self.cache = torch.empty(
            (pages, kv_heads, page_bytes(head_dim)), dtype=torch.uint8, **options
        )
        self.tail = torch.empty((max_sequences, kv_heads, PAGE, head_dim), dtype=dtype, **options)
        max_pages = -(-max_tokens // PAGE)
        self.block_tables = torch.zeros((max_sequences, max_pages), dtype=torch.int32, **options)
        self.lengths: dict[int, int] = {}
        self._max_sequences = max_sequences
        self._pages: dict[int, list[int]] = {}
        self._owners = [0] * pages
        self._free = list(range(pages))[::-1]

    def add(self, shared: int | None = None, pages: int = 0) -> int:
        """A new sequence, empty or with the first full ``pages`` of the sequence ``shared``.

        Raises:
            UserError: no sequence is free, or those pages are not full.
        """
        free = set(range(self._max_sequences)) - self.lengths.keys()
        if not free:
            raise UserError(f"all {self._max_sequences} sequences of the KV4 cache are in use")
        if pages and (shared not in self.lengths or self.lengths[shared] < pages * PAGE):
            raise UserError(f"sequence {shared} has no {pages} full pages to share")
        sequence = min(free)
        self.lengths[sequence] = pages * PAGE
        self._pages[sequence] = []
        self._own(sequence, self._pages[shared][:pages] if pages else [])
        return sequence

    def remove(self, sequence: int) -> None:
        """End a sequence; pages that no other one shares become free."""
        del self.lengths[sequence]
        for page in self._pages.pop(sequence):
            self._owners[page] -= 1
            if not self._owners[page]:
                self._free.append(page)

    def reserve(self, sequence: int, tokens: int) -> None:
        """Grow a sequence by ``tokens``; its new pages are not written yet.

        Raises:
            UserError: no page is free, or the sequence would be longer than ``max_tokens``.
        """
        owned, length = self._pages[sequence], self.lengths[sequence] + tokens
        needed = -(-length // PAGE)
        if needed > self.block_tables.shape[1]:
            raise UserError(
                f"sequence {sequence} would have {length} tokens; the KV4 cache has room for "
                f"{self.block_tables.shape[1] * PAGE}"
            )
        if needed - len(owned) > len(self._free):
            raise UserError(f"the KV4 cache has no free page left of {len(self._owners)}")
        new = [self._free.pop() for _ in range(needed - len(owned))]
        self._own(sequence, new)
        self.lengths[sequence] = length

    def append(
        self, sequences: list[int], key: Tensor, value: Tensor, counts: list[int] | None = None
    ) -> None:
        """Add tokens: key and value [tokens, kv_heads, D], ``counts`` of them for each sequence in
        turn, or one each."""
        for sequence, count in zip(sequences, counts or [1] * len(sequences), strict=True):
            self.reserve(sequence, count)
        start = None if counts is None else self.starts(counts)
        kv4_append(key, value, *self.batch(sequences), start, max(counts or [1]))

    def decode(
        self,
        sequences: list[int],
        query: Tensor,
        scale: float | None = None,
        window: int | None = None,
        plan: Plan | None = None,
    ) -> Tensor:
        """Attention of one token a sequence: query [sequences, heads, D], as ``kv4_decode``."""
        return kv4_decode(query, *self.batch(sequences), scale, window, plan)

    def prefill(
        self,
        sequences: list[int],
        query: Tensor,
        counts: list[int],
        scale: float | None = None,
        window: int | None = None,
    ) -> Tensor:
        """Attention of the last ``counts`` tokens of each sequence, as ``kv4_prefill``."""
        longest = max(self.lengths[sequence] for sequence in sequences)
        return kv4_prefill(
            query, self.starts(counts), *self.batch(sequences), max(counts), longest, scale, window
        )

    def batch(self, sequences: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """cache, tail, block_tables, seq_lens and slots of some sequences, for the operators."""
        lengths = [self.lengths[sequence] for sequence in sequences]
        slots = self._integers(sequences)
        longest = max(1, *(-(-length // PAGE) for length in lengths))
        tables = self.block_tables[slots, :longest].contiguous()
        return self.cache, self.tail, tables, self._integers(lengths), slots

    def starts(self, counts: list[int]) -> Tensor:
        """int32 [sequences + 1]: first row of each sequence's tokens."""
        return self._integers([sum(counts[:i]) for i in range(len(counts) + 1)])

    def fill_random(self, lengths: list[int], seed: int = 0) -> list[int]:
        """Sequences of these lengths with random codes, scales and tails, pages in random order:
        what a benchmark reads. Needs an unused cache."""
        generator = torch.Generator(device=self.device).manual_seed(seed)
        order = torch.randperm(len(self._free), generator=torch.Generator().manual_seed(seed))
        self._free = [self._free[i] for i in order.tolist()]
        dim = self.tail.shape[3]
        self.cache.random_(generator=generator)
        for first, last in ((32 * dim, 36 * dim), (68 * dim, page_bytes(dim))):
            part = self.cache[..., first:last].view(torch.float16)
            half = part.shape[-1] // 2
            part[..., :half].uniform_(0.1, 0.3, generator=generator)
            part[..., half:].uniform_(-3, -1, generator=generator)
        self.tail.normal_(generator=generator)
        sequences = [self.add() for _ in lengths]
        for sequence, length in zip(sequences, lengths, strict=True):
            self.reserve(sequence, length)
        return sequences

    def _own(self, sequence: int, pages: list[int]) -> None:
        """Append pages to a sequence."""
        owned = self._pages[sequence]
        if pages:
            place = slice(len(owned), len(owned) + len(pages))
            self.block_tables[sequence, place] = self._integers(pages)
        for page in pages:
            self._owners[page] += 1
        owned.extend(pages)

    def _integers(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32).to(self.device)
