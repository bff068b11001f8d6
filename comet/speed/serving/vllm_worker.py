# SPDX-License-Identifier: Apache-2.0
"""Serves requests with vLLM in vLLM's own environment.

``python vllm_worker.py REQUEST RESPONSE``, both JSON; ``comet.speed.serving.engines`` writes
REQUEST, starts it and reads RESPONSE, which is written anew after each load, so that a run that is
killed keeps what it has measured.

REQUEST: ``{format: 1, folder, plugin, arguments, loads: [{input_tokens, output_tokens, requests}],
repeats, seed, memory_share, profile}``; ``arguments`` go to ``vllm.LLM``.
RESPONSE: ``{format: 1, device, versions, engine, results: [{..load, served, seconds, windows |
error}]}``, where windows are the begin and end of each timed run in seconds since the epoch,
and with ``profile`` ``kernels: {load, runs, wall_us, gpu_us, idle_us, prefill, decode_step}``: the
last two list GPU microseconds by kernel, the largest first; ``runs`` are what they come from.
"""

import json
import os
import random
import sys
import time
from importlib import metadata
from pathlib import Path

FORMAT = 1
WARM_UP_TOKENS = 8
WARM_UP_REQUESTS = 32
# A load that takes seconds is timed again until it has taken these, or three times.
ENOUGH_SECONDS, ENOUGH_RUNS = 6.0, 3
PROFILED_STEPS = 64  # a page of the 4-bit cache: one of them fills it
KERNELS_SHOWN = 40
IDLE = "idle"
PROCESSES = "VLLM_ENABLE_V1_MULTIPROCESSING"
# That change how an engine runs.
VARIABLES = (
    PROCESSES,
    "VLLM_USE_AOT_COMPILE",
    "VLLM_USE_V2_MODEL_RUNNER",
    "COMET_VLLM_FUSION",
)


def main(request_path: str, response_path: str) -> None:
    """Answer one request; a load that fails stops no other."""
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    if request["format"] != FORMAT:
        raise SystemExit(f"request has format {request['format']}; this script knows {FORMAT}")
    # vLLM's default is an engine in a process of its own, whose kernels cannot be profiled here.
    if request.get("profile"):
        os.environ[PROCESSES] = "0"
    import torch
    from vllm import LLM

    if request["plugin"]:
        from comet.integrations.vllm import register

        register()
    started = time.perf_counter()
    llm = LLM(
        model=request["folder"],
        load_format="dummy",
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        gpu_memory_utilization=request["memory_share"],
        seed=request["seed"],
        **request["arguments"],
    )
    response = {
        "format": FORMAT,
        "device": torch.cuda.get_device_name(),
        "versions": versions(),
        "engine": engine_facts(llm) | {"start_seconds": time.perf_counter() - started},
        "results": [],
    }
    for load in request["loads"]:
        try:
            answer = serve(llm, load, request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
        response["results"].append(load | answer)
        write(response_path, response)
        print(f"{load}: {answer}", flush=True)
    if request.get("profile"):
        response["kernels"] = profiled(llm, largest(request["loads"]), request["seed"])
        write(response_path, response)


def write(path: str, response: dict) -> None:
    """Replace the response whole."""
    temporary = f"{path}.part"
    Path(temporary).write_text(json.dumps(response), encoding="utf-8")
    os.replace(temporary, path)


def versions() -> dict:
    """Versions of what is measured."""
    names = ("vllm", "torch", "transformers", "triton")
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def engine_facts(llm) -> dict:
    """The KV cache that the engine made."""
    config = llm.llm_engine.vllm_config
    cache, model = config.cache_config, config.model_config
    blocks, block = cache.num_gpu_blocks, cache.block_size
    return {
        "kv_cache_tokens": blocks * block if blocks else None,
        "block_size": block,
        "kv_cache_dtype": str(cache.cache_dtype),
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "dtype": str(model.dtype),
        "variables": {name: os.environ.get(name) for name in VARIABLES},
    }


def requests_of(llm, load: dict) -> int:
    """How many requests a load has; ``max`` is what the KV cache holds at once."""
    if load["requests"] != "max":
        return load["requests"]
    facts = engine_facts(llm)
    held = facts["kv_cache_tokens"] // (load["input_tokens"] + load["output_tokens"])
    return max(1, min(held, facts["max_num_seqs"]))


def prompts_of(count: int, tokens: int, vocabulary: int, seed: int) -> list[dict]:
    """Random prompts, no two alike."""
    draw = random.Random(seed)
    return [
        {"prompt_token_ids": [draw.randrange(10, vocabulary - 10) for _ in range(tokens)]}
        for _ in range(count)
    ]


def generate(llm, prompts: list[dict], output_tokens: int) -> tuple[float, int]:
    """(seconds, generated tokens) of all prompts given at once."""
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0.0, max_tokens=output_tokens, ignore_eos=True, detokenize=False
    )
    started = time.perf_counter()
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    seconds = time.perf_counter() - started
    return seconds, sum(len(output.outputs[0].token_ids) for output in outputs)


def serve(llm, load: dict, request: dict) -> dict:
    """Time one load after a short warm-up with prompts of the same length; short loads again."""
    count = requests_of(llm, load)
    vocabulary = llm.llm_engine.vllm_config.model_config.get_vocab_size()
    lengths = load["input_tokens"], vocabulary
    few = min(count, WARM_UP_REQUESTS)
    generate(llm, prompts_of(few, *lengths, request["seed"]), WARM_UP_TOKENS)
    seconds, windows, generated = [], [], 0
    while not enough(seconds, request["repeats"]):
        prompts = prompts_of(count, *lengths, request["seed"] + 1 + len(seconds))
        began = time.time()
        took, generated = generate(llm, prompts, load["output_tokens"])
        windows.append([began, time.time()])
        if generated != count * load["output_tokens"]:
            wanted = count * load["output_tokens"]
            raise RuntimeError(f"generated {generated} tokens instead of {wanted}")
        seconds.append(took)
    return {"served": count, "seconds": seconds, "windows": windows, "generated": generated}


def enough(seconds: list[float], repeats: int) -> bool:
    """Whether a load has been timed often enough, ``repeats`` times at least."""
    often = len(seconds) >= ENOUGH_RUNS or sum(seconds) >= ENOUGH_SECONDS
    return len(seconds) >= repeats and often


def largest(loads: list[dict]) -> dict:
    """The load with the most prompt tokens among those with a number of requests, or the first."""
    fixed = [load for load in loads if load["requests"] != "max"]
    return max(fixed, key=lambda load: load["input_tokens"] * load["requests"], default=loads[0])


def profiled(llm, load: dict, seed: int) -> dict:
    """GPU time by kernel of the prefill and of one decode step of a load, largest first.

    The prefill is a run that ends with the first token. Two longer runs differ by
    ``PROFILED_STEPS`` steps that only decode: both take the steps in which some requests decode
    beside others' prefill. Each run is made without the profiler too, for the wall clock.
    """
    prompts = requests_of(llm, load)
    vocabulary = llm.llm_engine.vllm_config.model_config.get_vocab_size()
    lengths = 1, 1 + PROFILED_STEPS, 1 + 2 * PROFILED_STEPS
    drawn = [
        prompts_of(prompts, load["input_tokens"], vocabulary, seed + n) for n in range(94, 100)
    ]
    seconds = [generate(llm, *given)[0] for given in zip(drawn[:3], lengths, strict=True)]
    first, short, long = (
        kernel_times(llm, *given) for given in zip(drawn[3:], lengths, strict=True)
    )
    runs = zip(lengths, seconds, (first, short, long), strict=True)
    found = {"load": load, "runs": [_whole_run(*run) for run in runs]}
    step = {name: _more(short.get(name, (0, 0)), both) for name, both in long.items()}
    found["wall_us"] = {
        "prefill": seconds[0] * 1e6,
        "decode_step": (seconds[2] - seconds[1]) * 1e6 / PROFILED_STEPS,
    }
    found["idle_us"] = {"prefill": first.pop(IDLE)[1], "decode_step": step.pop(IDLE)[1]}
    found["gpu_us"] = {"prefill": _total(first), "decode_step": _total(step)}
    return found | {"prefill": _rows(first), "decode_step": _rows(step)}


def kernel_times(llm, prompts: list[dict], output_tokens: int) -> dict[str, tuple[float, float]]:
    """(calls, microseconds) of each kernel of a run, and of the gaps between them."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        generate(llm, prompts, output_tokens)
        torch.cuda.synchronize()
    return exclusive_times(
        (event.name, event.time_range.start, event.time_range.end)
        for event in recorded.events()
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation
    )


def exclusive_times(events) -> dict[str, tuple[float, float]]:
    """(calls, microseconds) by kernel, none of it counted twice.

    A kernel that starts before its predecessor ends (programmatic dependent launch) waits for most
    of the time that they share: that time is the predecessor's. The kernels and ``IDLE``, the time
    in which none ran, add up to the time from the first start to the last end.

    Args:
        events: (name, start, end) in microseconds, in any order.
    """
    times: dict[str, tuple[float, float]] = {IDLE: (0, 0.0)}
    done = None
    for name, start, end in sorted(events, key=lambda event: event[1]):
        done = start if done is None else done
        if start > done:
            times[IDLE] = times[IDLE][0] + 1, times[IDLE][1] + start - done
        calls, us = times.get(name, (0, 0.0))
        times[name] = calls + 1, us + max(0.0, end - max(start, done))
        done = max(done, end)
    return times


def _more(short: tuple[float, float], long: tuple[float, float]) -> tuple[float, float]:
    return tuple((more - less) / PROFILED_STEPS for less, more in zip(short, long, strict=True))


def _whole_run(output_tokens: int, seconds: float, times: dict) -> dict:
    idle = times[IDLE][1]
    gpu = _total(times) - idle
    return {
        "output_tokens": output_tokens,
        "wall_us": seconds * 1e6,
        "gpu_us": gpu,
        "idle_us": idle,
    }


def _total(times: dict) -> float:
    return sum(us for _, us in times.values())


def _rows(times: dict) -> list[dict]:
    ordered = sorted(times.items(), key=lambda item: -item[1][1])[:KERNELS_SHOWN]
    return [{"kernel": name, "calls": calls, "us": us} for name, (calls, us) in ordered]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
