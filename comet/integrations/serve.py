# SPDX-License-Identifier: Apache-2.0
"""``comet serve``: start vLLM on an FMPQ checkpoint with the options that KV4 needs."""

import argparse
import json
import os
import shlex
import sys
from pathlib import Path

from comet.errors import UserError

DEFAULT_REQUESTS = 256
# Architectures that vLLM 0.24 runs on its second model runner without being told to.
SECOND_RUNNER = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM")
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


def add_serve(commands: argparse._SubParsersAction) -> None:
    """Add ``serve`` to the ``comet`` command."""
    text = "Serve an FMPQ checkpoint with vLLM: W4Ax linear layers and the 4-bit KV cache."
    parser = commands.add_parser(
        "serve",
        help=text,
        description=f"{text} What is not known here goes to vllm serve, for instance --port 8001.",
    )
    parser.add_argument("folder", type=Path, help="FMPQ checkpoint")
    parser.add_argument(
        "--max-num-seqs",
        type=int,
        default=DEFAULT_REQUESTS,
        help="requests at a time; each keeps an unfinished KV page in 16 bit (default: 256)",
    )
    parser.add_argument("--kv16", action="store_true", help="keep K and V in 16 bit")
    parser.add_argument("--print", action="store_true", help="print the command, and stop")
    parser.add_argument("others", nargs=argparse.REMAINDER, help="options of vllm serve")
    parser.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> None:
    command, environment, said = serve_command(
        options.folder, options.max_num_seqs, options.kv16, options.others
    )
    for line in said:
        print(f"comet serve: {line}", file=sys.stderr)
    if options.print:
        settings = [f"{name}={value}" for name, value in environment.items()]
        print(shlex.join([*settings, *command]))
        return
    from comet.speed.backends import Unavailable
    from comet.speed.serving.engines import vllm_python

    try:
        python = vllm_python()
    except Unavailable as missing:
        raise UserError(str(missing)) from None
    program = Path(python).with_name("vllm")
    if program.exists():
        command[0] = str(program)
    os.execvpe(command[0], command, os.environ | environment)


def serve_command(
    folder: Path, requests: int, kv16: bool, others: list[str]
) -> tuple[list[str], dict[str, str], list[str]]:
    """vLLM's command line, its environment variables, and what the user should know.

    Args:
        folder: FMPQ checkpoint.
        requests: at a time.
        kv16: keep K and V in 16 bit.
        others: further options of ``vllm serve``.

    Raises:
        UserError: the folder is no FMPQ checkpoint.
    """
    config = _config(folder)
    command = ["vllm", "serve", str(folder), "--max-num-seqs", str(requests)]
    environment, said = {}, []
    if kv16:
        return [*command, *others], environment, said
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        said.append(
            f"{folder} has a sliding window, which KV4 does not serve inside vLLM; K and V stay "
            "in 16 bit"
        )
        return [*command, *others], environment, said
    command += ["--attention-backend", "CUSTOM"]
    if not set(config.get("architectures") or ()) & set(SECOND_RUNNER):
        environment[RUNNER] = "1"
    return [*command, *others], environment, said


def _config(folder: Path) -> dict:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder} is no checkpoint: config.json cannot be read ({error})"
        ) from None
    if config.get("quantization_config", {}).get("quant_method") != "fmpq":
        raise UserError(f"{folder} is no FMPQ checkpoint; make one with comet quantize")
    return config
