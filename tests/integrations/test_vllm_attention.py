# SPDX-License-Identifier: Apache-2.0
"""The KV4 backend of vLLM, step by step against attention over the whole sequences."""

import types

import pytest
import torch
import vllm_attention_standins as attention_standins
import vllm_standins as vllm

from comet.errors import UserError
from comet.formats.kv4 import PAGE, page_bytes
from comet.kernels.kv4_reference import kv4_attention

HEADS, KV_HEADS, DIM, REQUESTS = 4, 2, 64, 5
SCALE = DIM**-0.5


@pytest.fixture
def backend(monkeypatch):
    """The backend's module; its flash kernel is plain attention here."""
    vllm.install(monkeypatch)
    wrapped = (
        (attention_standins.Attention, "get_kv_cache_spec"),
        (
            attention_standins.DefaultModelState,
            "prepare_attn",
        ),
    )
    for owner, name in wrapped:  # what the hooks wrap is as it was after each test
        monkeypatch.setattr(owner, name, getattr(owner, name))
    config = vllm.CONFIG
    config.scheduler_config = types.SimpleNamespace(max_num_seqs=REQUESTS)
    config.device_config = types.SimpleNamespace(device="cpu")
    config.parallel_config = types.SimpleNamespace(
        decode_context_parallel_size=1, prefill_context_parallel_size=1
    )
    config.model_config = types.SimpleNamespace(get_num_layers=lambda parallel: 2)
    config.use_v2_model_runner, config.speculative_config = True, None
    from comet.integrations.vllm import attention, prefill

    def plain(query, key, value, group, scale, out):
        parts = []
        for row in range(len(group.query_start) - 1):
            q = query[group.query_start[row] : group.query_start[row + 1]]
            keys = slice(int(group.key_start[row]), int(group.key_start[row + 1]))
            parts.append(_causal(q, key[keys], value[keys], scale))
        out.copy_(torch.cat(parts))

    monkeypatch.setattr(prefill, "flash_attention", plain)
    return attention


def _causal(query, key, value, scale):
    groups = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(groups, dim=1).double() for t in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.double(), key) * scale
    late = torch.arange(len(key)) > torch.arange(len(query))[:, None] + len(key) - len(query)
    weights = scores.masked_fill(late, -torch.inf).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, value).to(query.dtype)


class Engine:
    """Requests with pages in random order, and steps as vLLM makes them."""

    def __init__(self, backend, lengths):
        torch.manual_seed(0)
        self.backend, self.done = backend, [0] * len(lengths)
        self.qkv = [
            [torch.randn(n, heads, DIM).half() for heads in (HEADS, KV_HEADS, KV_HEADS)]
            for n in lengths
        ]
        pages = -(-max(lengths) // PAGE)
        order = torch.randperm(len(lengths) * pages).int() + 1
        self.tables = order.view(len(lengths), pages)
        shape = backend.KV4Backend.get_kv_cache_shape(len(order) + 1, PAGE, KV_HEADS, DIM)
        self.cache = torch.zeros(shape, dtype=torch.uint8)
        self.layer = backend.KV4Attention(HEADS, DIM, SCALE, KV_HEADS)
        self.layer.process_weights_after_loading(torch.float16)
        self.builder = backend.KV4MetadataBuilder(None, [], vllm.CONFIG, torch.device("cpu"))
        self.out = [torch.zeros(n, HEADS, DIM).half() for n in lengths]

    def step(self, counts: dict[int, int], padding: int = 0) -> None:
        """Run ``counts[request]`` tokens of each request; decodes come first."""
        rows = sorted(counts, key=counts.get)
        slots = self.backend.hooks.RequestSlots.on("cpu", REQUESTS)
        slots.fill(torch.tensor(rows, dtype=torch.int32), len(rows))
        lengths = [counts[r] for r in rows] + [0] * padding
        start = torch.nn.functional.pad(torch.tensor(lengths).cumsum(0), (1, 0)).int()
        after = torch.tensor([self.done[r] + counts[r] for r in rows] + [0] * padding).int()
        tables = torch.cat((self.tables[rows], torch.zeros(padding, self.tables.shape[1]).int()))
        tokens = int(start[-1]) + padding
        batch = attention_standins.CommonAttentionMetadata(
            start, start, after, len(rows) + padding, tokens, max(lengths), int(after.max()),
            tables, torch.zeros(tokens), after,
        )  # fmt: skip
        metadata = self.builder.build(0, batch)
        chunks = [
            torch.cat([self.qkv[r][i][self.done[r] : self.done[r] + counts[r]] for r in rows])
            for i in range(3)
        ]
        chunks = [torch.cat((c, c.new_zeros(padding, *c.shape[1:]))) for c in chunks]
        output = torch.full((tokens, HEADS * DIM), torch.nan, dtype=torch.float16)
        self.layer.forward(None, *chunks, self.cache, metadata, output=output)
        for row, request in enumerate(rows):
            got = output[start[row] : start[row + 1]].view(-1, HEADS, DIM)
            self.out[request][self.done[request] : self.done[request] + counts[request]] = got
            self.done[request] += counts[request]


def decoded(qkv) -> torch.Tensor:
    """[tokens, heads, D] as a KV4 cache computes token by token."""
    q, k, v = (t.transpose(0, 1)[None] for t in qkv)
    return kv4_attention(q, k, v, SCALE)[0].transpose(0, 1)


def test_decoding_token_by_token_is_the_reference(backend):
    engine = Engine(backend, [130, 67, 64, 1])
    for step in range(130):
        running = {r: 1 for r in range(4) if step < len(engine.qkv[r][0])}
        engine.step(running, padding=step % 3)
    for request in range(4):
        expected = decoded(engine.qkv[request])
        torch.testing.assert_close(engine.out[request], expected, rtol=2e-3, atol=2e-3)


def test_prompts_are_exact_and_their_continuation_reads_the_cache(backend):
    engine = Engine(backend, [200, 90, 131])
    engine.step({0: 150, 1: 20, 2: 131})
    for request, count in ((0, 150), (1, 20), (2, 131)):
        exact = _causal(*(t[:count] for t in engine.qkv[request]), SCALE)
        torch.testing.assert_close(engine.out[request][:count], exact, rtol=1e-3, atol=1e-3)
    engine.step({0: 1, 1: 70})
    engine.step({0: 49})
    expected = decoded(engine.qkv[0])
    # The chunk's own tokens are exact where the reference reads full pages in 4 bit.
    assert (engine.out[0][150] - expected[150]).abs().max() < 2e-3
    exact = _causal(*engine.qkv[0], SCALE)
    error = (engine.out[0][151:] - exact[151:]).float().norm() / exact[151:].float().norm()
    # Of values drawn from one normal distribution four bits keep this much.
    assert 1e-3 < error < 0.2


def test_a_prompt_does_not_depend_on_its_neighbours(backend):
    alone, together = Engine(backend, [100, 120]), Engine(backend, [100, 120])
    alone.step({0: 100})
    together.step({1: 40})
    together.step({0: 100, 1: 80})
    torch.testing.assert_close(together.out[0], alone.out[0], rtol=1e-3, atol=1e-3)


def test_only_prompts_that_continue_read_the_cache(backend, monkeypatch):
    from comet.integrations.vllm import prefill

    read = []
    unpack = prefill.kv4_unpack

    def counted(*arguments):
        read.append(len(arguments[2]))
        return unpack(*arguments)

    monkeypatch.setattr(prefill, "kv4_unpack", counted)
    engine = Engine(backend, [100, 120, 90])
    engine.step({0: 100, 1: 40})
    assert read == []
    engine.step({1: 80, 2: 90})
    assert read == [1]
    exact = _causal(*engine.qkv[2], SCALE)
    torch.testing.assert_close(engine.out[2], exact, rtol=1e-3, atol=1e-3)


def test_small_groups_of_prompts_give_the_same(backend, monkeypatch):
    from comet.integrations.vllm import prefill

    outputs = []
    for limit in (65536, 100):
        monkeypatch.setattr(prefill, "WORKSPACE_TOKENS", limit)
        engine = Engine(backend, [90, 80, 70])
        engine.step({0: 30, 1: 20, 2: 10})
        engine.step({0: 60, 1: 60, 2: 60})
        outputs.append(engine.out)
    for one, other in zip(*outputs, strict=True):
        assert torch.equal(one, other)


def test_nothing_is_written_while_memory_is_measured(backend):
    engine = Engine(backend, [10])
    output = torch.full((3, HEADS * DIM), torch.nan, dtype=torch.float16)
    chunk = [t[:3] for t in engine.qkv[0]]
    engine.layer.forward(None, *chunk, engine.cache, None, output=output)
    assert not output.any()
    assert not engine.cache.any()


def test_pages_have_their_true_size(backend):
    hooks = backend.hooks
    assert hooks.obstacle() is None
    hooks.install()
    hooks.install()
    layer = attention_standins.Attention()
    layer.layer_name = "model.layers.0"
    layer.attn_backend = backend.KV4Backend
    plain = {"block_size": 128, "num_kv_heads": 8, "head_size": 128, "dtype": torch.bfloat16}
    layer.plain_spec = attention_standins.FullAttentionSpec(**plain)
    spec = layer.get_kv_cache_spec(None)
    assert spec.page_size_bytes == 2 * 8 * page_bytes(128) == 2 * 71680
    assert 128 * 8 * 128 * 2 * 2 / spec.page_size_bytes == pytest.approx(3.657, abs=1e-3)
    layer.plain_spec = attention_standins.FullAttentionSpec(**plain, sliding_window=4096)
    with pytest.raises(ValueError, match="sliding window"):
        layer.get_kv_cache_spec(None)
    layer.plain_spec = attention_standins.FullAttentionSpec(**(plain | {"block_size": 16}))
    with pytest.raises(ValueError, match="multiple of 64"):
        layer.get_kv_cache_spec(None)


def test_slots_follow_requests(backend, monkeypatch):
    hooks = backend.hooks
    hooks.install()
    state = attention_standins.DefaultModelState()
    state.device, state.max_num_reqs = torch.device("cpu"), REQUESTS
    batch = types.SimpleNamespace(idx_mapping=torch.tensor([3, 0]).int(), num_reqs=2)
    assert state.prepare_attn(batch, None, (), None, [], None) is batch
    rows = hooks.RequestSlots.on("cpu", REQUESTS).rows
    assert rows[:4].tolist() == [3, 0, REQUESTS, REQUESTS]


def test_what_kv4_does_not_serve_is_one_line(backend):
    check = backend.KV4Backend.supports_combination
    config = vllm.CONFIG
    assert check() is None
    config.use_v2_model_runner = False
    assert "VLLM_USE_V2_MODEL_RUNNER=1" in check()
    config.use_v2_model_runner, config.speculative_config = True, object()
    assert "speculative" in check()
    config.speculative_config = None
    config.parallel_config.decode_context_parallel_size = 2
    assert "context parallelism" in check()
    with pytest.raises(ValueError, match="soft cap"):
        backend.KV4Attention(HEADS, DIM, SCALE, KV_HEADS, logits_soft_cap=30.0)


def test_a_vllm_with_other_signatures_is_refused(backend, monkeypatch):
    monkeypatch.setattr(backend.hooks, "SPEC_ARGUMENTS", ["self", "config"])
    assert "written for vLLM 0.24" in backend.KV4Backend.supports_combination()


def test_tails_that_take_too_much_are_refused(backend, monkeypatch):
    card = types.SimpleNamespace(total_memory=10 * 2**20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    shape = (101, 8, PAGE, 128)
    with pytest.raises(UserError, match="give --max-num-seqs 3 or less"):
        backend._check_tails(vllm.CONFIG, shape, torch.float16, torch.device("cuda"))
