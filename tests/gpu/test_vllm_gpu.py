# SPDX-License-Identifier: Apache-2.0
"""vLLM with the plugin against transformers, on SmolLM2.

Two programs that round to bf16 in different places cannot agree in every digit, and 4-bit
activations turn a changed bit into changed codes. So both are measured against a float32 run of the
same weights, codes and cache. vLLM may be at most ``BIT`` times (one bit) as far from it as
transformers in bf16 is, and lean no further to a side, within ``STANDARD_ERRORS``. As many of its
greedy tokens must be the float32 run's likeliest ones, and the others as near to them as rounding
moves two logarithms; continuations of two engines may part where two tokens are that near.

The cache is tested on the same weights in 16 bit besides, where rounding is small and 4-bit keys
and values stand out. One engine is a process of its own; all start at once.
"""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import smollm2
import torch
from smollm2 import Reference

from comet.speed.backends import Unavailable
from comet.speed.serving.engines import surroundings, vllm_python

pytestmark = [pytest.mark.gpu, pytest.mark.vllm]
START_SECONDS = 400
BIT = 2
STANDARD_ERRORS = 5
CHUNK, PAGE = 256, 64
COMMON = {
    "max_model_len": 1024,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 2048,
    "kv_cache_memory_bytes": 1 << 30,
    "gpu_memory_utilization": 0.05,
    "enable_prefix_caching": False,
}
KV4 = {"attention_backend": "CUSTOM"}
EAGER = {"enforce_eager": True}
# Decode steps as graphs of the kernels that run eagerly, nothing compiled.
GRAPHS = {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}}
CHUNKS = {"max_num_batched_tokens": CHUNK, "enable_prefix_caching": True}
# Of each engine: whether activations are quantized, its arguments, and what it is asked.
ENGINES = {
    "w4ax": (True, {}, ["mixed", "long"]),
    "w4ax-kv4": (True, KV4, ["mixed"]),
    "w4ax-kv4-eager": (True, KV4 | EAGER, ["mixed", "many"]),
    "w4ax-kv4-graphs": (True, KV4 | GRAPHS, ["mixed", "many"]),
    "kv4": (False, KV4, ["mixed"]),
    "kv4-eager": (False, KV4 | EAGER, ["many"]),
    "kv4-chunks": (False, KV4 | EAGER | CHUNKS, ["long", "again"]),
    "kv4-few-pages": (False, KV4 | EAGER | {"num_gpu_blocks_override": 21}, ["many"]),
    "too-many-requests": (
        False,
        KV4 | EAGER | {"max_num_seqs": 1 << 15, "max_num_batched_tokens": 1 << 15},
        [],
    ),
    "no-memory": (False, KV4 | EAGER | {"kv_cache_memory_bytes": 1 << 20}, []),
}


def rounds_of(text: list[int]) -> dict[str, dict]:
    """What engines are asked, from 900 tokens of English."""
    mixed = [text[7 * n : 7 * n + n] for n in (2, 5, 17, 63, 64, 65)] + [text[:130], text[300:600]]
    many = [text[40 * i : 40 * i + 100] for i in range(16)]
    shared = 5 * PAGE
    asked = {
        "mixed": (mixed, 16, True),
        "many": (many, 64, False),
        "long": ([text], 32, True),
        "again": ([text[:shared] + text[at : at + 70] for at in (shared, 400, 600)], 24, False),
    }
    names = "prompts", "new_tokens", "prompt_logprobs"
    return {name: dict(zip(names, given, strict=True)) for name, given in asked.items()}


@pytest.fixture(scope="module")
def folders(request, tmp_path_factory) -> dict[bool, Path]:
    """The model whose activations are quantized, and the one in 16 bit."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    scratch = tmp_path_factory.mktemp("smollm2")
    checkpoint = smollm2.quantized(request, scratch)
    return {True: checkpoint, False: smollm2.in_16_bit(checkpoint, scratch / "16-bit")}


@pytest.fixture(scope="module")
def rounds(folders) -> dict[str, dict]:
    return rounds_of(smollm2.english(folders[True], 900))


@pytest.fixture(scope="module")
def answers(request, tmp_path_factory):
    """What an engine answers, by name; all engines are started when the first is asked."""
    try:
        python = vllm_python()
    except Unavailable as missing:
        pytest.skip(str(missing))
    folders, rounds = request.getfixturevalue("folders"), request.getfixturevalue("rounds")
    scratch, running, done = tmp_path_factory.mktemp("engines"), {}, {}
    for name, (quantized, arguments, asked) in ENGINES.items():
        job = {
            "folder": str(folders[quantized]),
            "arguments": COMMON | arguments,
            "rounds": [rounds[one] for one in asked],
        }
        running[name] = _start(python, job, scratch / name)

    def answer(name: str) -> SimpleNamespace:
        if name not in done:
            done[name] = _finish(running[name], scratch / name)
        return done[name]

    yield answer
    for process in running.values():
        process.kill()
        process.wait()


def _start(python: str, job: dict, scratch: Path) -> subprocess.Popen:
    scratch.mkdir()
    (scratch / "request.json").write_text(json.dumps(job), encoding="utf-8")
    # vLLM's cache is not shared: engines that compile one graph at a time would share files.
    own = surroundings(scratch.parent / "compiled", scratch)
    own["VLLM_CACHE_ROOT"] = str(scratch / "cache")
    script = Path(__file__).with_name("vllm_engine.py")
    command = [python, script, scratch / "request.json", scratch / "response.json"]
    with (scratch / "log").open("w") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=own)


def _finish(process: subprocess.Popen, scratch: Path) -> SimpleNamespace:
    try:
        process.wait(START_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
    response = scratch / "response.json"
    if not response.exists():
        said = (scratch / "log").read_text(encoding="utf-8", errors="replace")
        pytest.fail(f"engine {scratch.name} gave no answer:\n{said[-3000:]}")
    return SimpleNamespace(**json.loads(response.read_text(encoding="utf-8")))


def served(answers, name: str, asked: str) -> list[dict]:
    """The answers of one round."""
    answer = answers(name)
    assert answer.error is None, answer.error
    return answer.rounds[ENGINES[name][2].index(asked)]


@pytest.fixture(scope="module")
def references(folders) -> dict[bool, tuple[Reference, Reference]]:
    """The float32 run and transformers in bf16, of both models."""
    return {
        quantized: (Reference(folder, torch.float32), Reference(folder, torch.bfloat16))
        for quantized, folder in folders.items()
    }


def check(pair: tuple[Reference, Reference], prompts, answers, pieces=None) -> None:
    """The logarithms and greedy tokens of answers to prompts.

    Args:
        pair: of ``references``.
        prompts: token lists.
        answers: to them.
        pieces: for the 4-bit cache, lengths of the parts in which a prompt is read; None for a
            16-bit cache.
    """
    vllm, rounding, ties, same = [], [], [], []
    for prompt, answer in zip(prompts, answers, strict=True):
        made = len(answer["tokens"])
        parts = None if pieces is None else [*pieces(prompt), *[1] * made]
        exact, rounded = (one.says(prompt + answer["tokens"], parts) for one in pair)
        given = torch.tensor(answer["prompt_logprobs"] + answer["logprobs"])
        vllm.append(given - exact.given[-len(given) :])
        rounding.append((rounded.given - exact.given)[-len(given) :])
        ties.append((exact.best - exact.given)[-made:])
        same.append((rounded.likeliest == exact.likeliest)[-made:].float())
    vllm, rounding, ties, same = map(torch.cat, (vllm, rounding, ties, same))
    likeliest = (ties == 0).float().mean()
    print(
        f"of vLLM and of transformers: mean distance {vllm.abs().mean():.4f}, "
        f"{rounding.abs().mean():.4f}; mean {vllm.mean():+.4f}, {rounding.mean():+.4f}; largest "
        f"{vllm.abs().max():.3f}, {rounding.abs().max():.3f}; greedy tokens that are the "
        f"likeliest {likeliest:.3f}, {same.mean():.3f}; largest tie {ties.max():.3f}"
    )
    assert vllm.abs().mean() <= BIT * rounding.abs().mean()
    error = STANDARD_ERRORS * rounding.std() / len(vllm) ** 0.5
    assert vllm.mean().abs() <= rounding.mean().abs() + error
    assert ties.max() <= 2 * BIT * rounding.abs().max()
    # Of a share of n tokens; 0.5 is its largest deviation.
    assert likeliest >= same.mean() - STANDARD_ERRORS * 0.5 / len(ties) ** 0.5


def whole(prompt: list[int]) -> list[int]:
    """A prompt that is read at once."""
    return [len(prompt)]


def chunks(prompt: list[int]) -> list[int]:
    """A prompt that is read in chunks."""
    return [min(CHUNK, len(prompt) - start) for start in range(0, len(prompt), CHUNK)]


@pytest.mark.parametrize("asked", ["mixed", "long"])
def test_w4ax_agrees_with_transformers(answers, references, rounds, asked):
    check(references[True], rounds[asked]["prompts"], served(answers, "w4ax", asked))


@pytest.mark.parametrize("name", ["w4ax-kv4", "w4ax-kv4-eager"])
def test_w4ax_with_kv4_agrees_with_transformers(answers, references, rounds, name):
    asked = rounds["mixed"]["prompts"]
    check(references[True], asked, served(answers, name, "mixed"), whole)


def test_kv4_agrees_with_transformers(answers, references, rounds):
    check(references[False], rounds["mixed"]["prompts"], served(answers, "kv4", "mixed"), whole)


def test_a_prompt_longer_than_a_chunk(answers, references, rounds):
    asked = rounds["long"]["prompts"]
    check(references[False], asked, served(answers, "kv4-chunks", "long"), chunks)


def test_a_prefix_is_used_again(answers, references, rounds):
    """The long prompt that was read before left its pages. The first prompt is its beginning, and
    finds all of its own full pages; the others part from it after five."""
    prompts, again = rounds["again"]["prompts"], served(answers, "kv4-chunks", "again")
    found = [len(prompts[0]) // PAGE * PAGE, 5 * PAGE, 5 * PAGE]
    assert [answer["cached"] for answer in again] == found

    def pieces(prompt: list[int]) -> list[int]:
        shared = found[prompts.index(prompt)]
        return [*chunks(prompt[:shared]), len(prompt) - shared]

    check(references[False], prompts, again, pieces)


@pytest.mark.parametrize("asked", ["mixed", "many"])
def test_graphs_change_no_bit(answers, asked):
    """Both run the same kernels. A graph that kept an address or a length of its capture would
    differ, and so would a kernel that reads too early: in graphs launches overlap, while eager ones
    wait for Python."""
    eager = served(answers, "w4ax-kv4-eager", asked)
    assert served(answers, "w4ax-kv4-graphs", asked) == eager


def test_preemption_changes_no_token(answers, references, rounds):
    """Requests that lose their pages are read again, so that rounding differs: their tokens part
    from those of an engine with pages for all at ties only, and are as often the likeliest."""
    few, plenty = (served(answers, name, "many") for name in ("kv4-few-pages", "kv4-eager"))
    assert answers("kv4-few-pages").preemptions > 0
    assert answers("kv4-eager").preemptions == 0
    exact, rounded = references[False]
    prompts, made = rounds["many"]["prompts"], rounds["many"]["new_tokens"]
    parts = [*whole(prompts[0]), *[1] * made]  # the prompts are of the same length
    preempted, kept = (
        [prompt + answer["tokens"] for prompt, answer in zip(prompts, answers, strict=True)]
        for answers in (few, plenty)
    )
    said, control = (exact.says_of_all(texts, parts) for texts in (preempted, kept))
    again = rounded.says_of_all(kept, parts)
    noise = max(float((a.given - b.given).abs().max()) for a, b in zip(again, control, strict=True))
    gaps = []
    for *texts, one, other in zip(preempted, kept, said, control, strict=True):
        at = next((i for i, (a, b) in enumerate(zip(*texts, strict=True)) if a != b), None)
        if at is not None:  # up to here both read the same tokens
            gaps.append(float((one.given[at - 1] - other.given[at - 1]).abs()))
    likeliest = [
        float(torch.cat([(one.best == one.given)[-made:] for one in of]).float().mean())
        for of in (said, control)
    ]
    print(f"parted: {gaps}, rounding {noise:.3f}, likeliest {likeliest}")
    assert all(gap <= 2 * BIT * noise for gap in gaps)
    assert likeliest[0] >= likeliest[1] - STANDARD_ERRORS * 0.5 / (made * len(prompts)) ** 0.5


def test_too_little_memory_is_said_in_one_line(answers):
    tails, pages = answers("too-many-requests").error, answers("no-memory").error
    assert "32768 requests would take" in tails and "--max-num-seqs" in tails
    assert "larger than the available KV cache memory" in pages and "max_model_len" in pages
    assert "\n" not in tails + pages
