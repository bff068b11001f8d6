# SPDX-License-Identifier: Apache-2.0
"""One vLLM engine in a process of its own, with the plugin: ``vllm_engine.py REQUEST RESPONSE``.

REQUEST: ``{folder, arguments, rounds: [{prompts: [[token]], new_tokens, prompt_logprobs}]}``;
``arguments`` go to ``vllm.LLM``, and the prompts of a round are given at once.
RESPONSE: ``{error, preemptions, rounds: [[{tokens, logprobs, prompt_logprobs, cached}]]}``;
``error`` is None, or what the engine raised.
"""

import json
import os
import sys
from pathlib import Path


def main(request_path: str, response_path: str) -> None:
    """Serve all rounds, one after another."""
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    response = {"error": None, "preemptions": 0, "rounds": []}
    # In this process, where the plugin is registered by hand and errors arrive as they are.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    from comet.integrations.vllm import register

    register()
    try:
        llm = LLM(
            model=request["folder"],
            skip_tokenizer_init=True,
            dtype="bfloat16",
            seed=0,
            disable_log_stats=False,
            **request["arguments"],
        )
        response["rounds"] = [serve(llm, **given) for given in request["rounds"]]
        response["preemptions"] = preemptions(llm)
    except Exception as error:
        response["error"] = f"{type(error).__name__}: {error}"
    Path(response_path).write_text(json.dumps(response), encoding="utf-8")


def serve(llm, prompts: list[list[int]], new_tokens: int, prompt_logprobs: bool) -> list[dict]:
    """Greedy continuations of prompts."""
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0.0,
        max_tokens=new_tokens,
        ignore_eos=True,
        detokenize=False,
        logprobs=0,
        prompt_logprobs=0 if prompt_logprobs else None,
    )
    requests = [{"prompt_token_ids": prompt} for prompt in prompts]
    return [answer(output) for output in llm.generate(requests, sampling, use_tqdm=False)]


def answer(output) -> dict:
    """The tokens of one request and the logarithms of their probabilities."""
    made = output.outputs[0]
    prompt = zip(output.prompt_token_ids[1:], (output.prompt_logprobs or [None])[1:], strict=False)
    return {
        "tokens": list(made.token_ids),
        "logprobs": [
            at[token].logprob for token, at in zip(made.token_ids, made.logprobs, strict=True)
        ],
        "prompt_logprobs": [at[token].logprob for token, at in prompt],
        "cached": output.num_cached_tokens or 0,
    }


def preemptions(llm) -> int:
    """How many requests have lost their pages so far."""
    return sum(
        int(metric.value) for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions"
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
