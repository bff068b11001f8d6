# SPDX-License-Identifier: Apache-2.0
"""Runs the real Snakemake in a folder of its own; writes a tiny model and a tiny text."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
WORDS = [
    "the",
    "river",
    "runs",
    "past",
    "an",
    "old",
    "mill",
    "and",
    "small",
    "boats",
    "carry",
    "salt",
    "to",
    "towns",
    "on",
    "its",
    "banks",
    "where",
    "people",
    "trade",
    "cloth",
    "for",
    "grain",
    "in",
    "every",
    "season",
    "of",
    "a",
    "long",
    "year",
]


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other test processes out of a folder that they share."""
    with open(folder.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def passages(count: int = 40) -> list[dict]:
    """Passages that differ from each other, the same on every machine."""
    rows = []
    for number in range(count):
        words = [WORDS[(number * 7 + step * (number % 5 + 1)) % len(WORDS)] for step in range(60)]
        rows.append({"title": f"Article {number}", "text": " ".join(words) + "."})
    return rows


def write_model(folder: Path) -> None:
    """A random LLaMA with 192 channels (one and a half blocks) and a word tokenizer."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(["<unk>", ".", *dict.fromkeys(WORDS)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=192,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=256,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<unk>")
    fast.save_pretrained(folder)


def environment(**variables: str) -> dict[str, str]:
    """This process's environment, with the package importable and one thread a job."""
    paths = [variables.pop("PYTHONPATH", ""), str(REPOSITORY)]
    fixed = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    fixed["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return os.environ | fixed | variables


def snakemake(*arguments: str) -> subprocess.CompletedProcess:
    """Snakemake in the repository itself, for what runs no job."""
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *arguments],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=environment(),
        check=False,
    )


@dataclass
class Inputs:
    """The tiny model, its text, and the configuration that names them."""

    folder: Path
    config: dict = field(default_factory=dict)


def write_inputs(folder: Path) -> None:
    """A model of two layers, and forty passages."""
    write_model(folder / "model")
    lines = [json.dumps(row) for row in passages()]
    (folder / "text.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def tiny_config(folder: Path) -> dict:
    """The configuration that names what ``write_inputs`` wrote."""
    source = {"kind": "file", "path": str(folder / "text.jsonl"), "format": "jsonl"}
    return {
        "machine": "local-tiny",
        "device": "cpu",
        "references": [],
        "models": {
            "tiny": {
                "label": "random LLaMA",
                "family": "llama",
                "source": {"kind": "folder", "path": str(folder / "model")},
            }
        },
        "texts": {"tiny": {"label": "test passages", "source": {**source, "part": "halves"}}},
        "calibration": {"text": "tiny", "windows": 2, "context": 64},
        "accuracy": {
            "models": ["tiny"],
            "texts": ["tiny"],
            "context": 64,
            "windows": "0-1",
            "rows": ["w16a16", "fmpq-w4ax"],
            "rows_of": {},
            "tasks": [],
        },
        "kv_cache": {"models": []},
        "protocol": {"models": []},
        "gemm": {"models": []},
        "attention": {"models": []},
        "serving": {"runs": []},
        "profile": {"models": []},
        "figures": ["table1"],
    }


@contextmanager
def ended(process: subprocess.Popen) -> Iterator[subprocess.Popen]:
    """Leave none of its processes behind where a test fails or takes longer than pytest allows."""
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


class Workflow:
    """Snakemake in a working directory of its own, with the default configuration and overrides."""

    def __init__(self, directory: Path, config: dict, variables: dict | None = None) -> None:
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self.environment = variables or {}
        self.configure(config)

    def configure(self, config: dict) -> None:
        text = yaml.safe_dump(config)
        (self.directory / "override.yaml").write_text(text, encoding="utf-8")

    def command(self, *arguments: str) -> list[str]:
        return [
            *(sys.executable, "-m", "snakemake"),
            *("--snakefile", str(REPOSITORY / "workflow" / "Snakefile")),
            *("--directory", str(self.directory), "--cores", "2"),
            *("--configfile", str(REPOSITORY / "config" / "config.yaml")),
            *(str(self.directory / "override.yaml"), "--"),
            *arguments,
        ]

    def start(self, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.Popen:
        command = self.command(*arguments)
        position = command.index("--configfile")
        return subprocess.Popen(
            [*command[:position], *options, *command[position:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.directory,
            env=environment(**self.environment),
            start_new_session=True,
            # A shell that runs the tests in the background ignores this signal for all of them.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments: str, options: tuple[str, ...] = (), expect: int | None = 0) -> str:
        """Run targets; returns everything that was printed and checks the exit status."""
        with ended(self.start(*arguments, options=options)) as process:
            output, _ = process.communicate()
        if expect is not None:
            assert process.returncode == expect, output
        return output

    def interrupt(self, target: str, ready: Callable[[], bool], how: signal.Signals) -> str:
        """Start a target and send a signal to all its processes as soon as ``ready``."""
        with ended(self.start(target)) as process:
            while not ready():
                assert process.poll() is None, process.communicate()[0]
                time.sleep(0.05)
            # As a terminal does it: all processes of the run get the signal.
            os.killpg(process.pid, how)
            return process.communicate()[0]

    def path(self, *parts: str) -> Path:
        return self.directory.joinpath("results", "local-tiny", *parts)

    def records(self, kind: str) -> list[dict]:
        lines = self.path(f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]
