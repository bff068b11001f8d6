# SPDX-License-Identifier: Apache-2.0
"""Which engines serve which requests (paper, Figs. 10, 11, 12 and 15)."""

import os
from dataclasses import dataclass

from comet.errors import UserError

MOST = "max"  # as many requests as the KV cache holds
ENGINES = (
    "vllm-bf16",
    "vllm-w4a16",
    "vllm-fp8",
    "vllm-fp8-kv8",
    "vllm-comet",
    "vllm-comet-w4ax",
    "vllm-comet-kv4",
    "trtllm-fp16",
    "trtllm-w4a16",
    "trtllm-w8a8",
    "qserve",
)


# Where engines live that are not in this environment.
VARIABLES = ("COMET_VLLM_PYTHON", "COMET_TRTLLM_BENCH", "COMET_TRTLLM_ENGINES")


def engines_named() -> dict[str, str | None]:
    """Engines that the environment names; a skipped record is tried again when this changes."""
    return {name: os.environ.get(name) for name in VARIABLES}


@dataclass(frozen=True)
class Load:
    """Requests of one length that are given to an engine at once.

    Attributes:
        input_tokens, output_tokens: of each request; generation does not stop earlier.
        requests: how many, or ``max``.
    """

    input_tokens: int
    output_tokens: int
    requests: int | str

    def as_case(self, model: str, memory_cap: float | None) -> dict:
        """The record's case; ``memory_cap`` in GB."""
        return {
            "model": model,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "requests": self.requests,
            "memory_cap": memory_cap,
        }


@dataclass(frozen=True)
class ServingJob:
    """One start of one engine, and what it serves.

    Attributes:
        model: of ``resources/paper/model_shapes.csv``.
        engine: of ``ENGINES``.
        loads: in the order in which they are served.
        memory_cap: memory of the GPU that may be used, GB; None for nine tenths of it.
    """

    model: str
    engine: str
    loads: tuple[Load, ...]
    memory_cap: float | None = None

    @property
    def name(self) -> str:
        """File-name form."""
        cap = "" if self.memory_cap is None else f"-{self.memory_cap:g}gb"
        return f"{self.model}-{self.engine}{cap}"

    @staticmethod
    def from_dict(values: dict) -> "ServingJob":
        """The job that ``dataclasses.asdict`` was given."""
        loads = tuple(Load(**load) for load in values["loads"])
        return ServingJob(**values | {"loads": loads})

    def case(self, load: Load) -> dict:
        """The record's case of a load."""
        return load.as_case(self.model, self.memory_cap)


def serving_jobs(settings: list[dict]) -> list[ServingJob]:
    """Engine starts of a configuration's ``serving.runs``, grouped so that loads share a start.

    Args:
        settings: each ``{models, engines, loads: [[input, output, requests], ...], memory_cap}``.

    Raises:
        UserError: an engine or a number of requests that is none.
    """
    loads: dict[tuple, list[Load]] = {}
    for setting in settings:
        for model in setting["models"]:
            for engine in setting["engines"]:
                if engine not in ENGINES:
                    raise UserError(
                        f"serving engine {engine!r} is unknown; use one of {', '.join(ENGINES)}"
                    )
                own = loads.setdefault((model, engine, setting.get("memory_cap")), [])
                own += [load for load in map(_load, setting["loads"]) if load not in own]
    return [
        ServingJob(model, engine, tuple(wanted), cap)
        for (model, engine, cap), wanted in loads.items()
    ]


def _load(values: list) -> Load:
    if len(values) != 3 or not all(isinstance(v, int) and v > 0 for v in values[:2]):
        raise UserError(f"serving load {values} is not [input tokens, output tokens, requests]")
    requests = values[2]
    if requests != MOST and not (isinstance(requests, int) and requests > 0):
        raise UserError(f"serving load {values}: requests is {requests!r}; use a number or max")
    return Load(*values)
