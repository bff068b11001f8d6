# SPDX-License-Identifier: Apache-2.0
"""The schema: what a configuration may hold, told in one line, and its defaults."""

import copy
import json
from functools import cache

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from comet.config.layers import read_yaml
from comet.config.names import suggestion
from comet.errors import UserError
from comet.measurements import REPOSITORY

SCHEMA = REPOSITORY / "workflow" / "schemas" / "config.schema.yaml"


@cache
def config_schema() -> dict:
    """The schema of a configuration; not to be changed."""
    return read_yaml(SCHEMA)


def conform(config: dict) -> None:
    """Check a configuration against the schema and fill in its defaults, in place.

    Raises:
        UserError: the first thing that is wrong, in one line.
    """
    _plain(config)
    error = best_match(Draft202012Validator(config_schema()).iter_errors(config), key=_relevance)
    if error:
        raise UserError(_explain(error))
    _fill_defaults(config, config_schema(), config_schema())


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
        return f"config key {parent}{extra[0]} is unknown{suggestion(extra[0], known)}"
    if error.validator == "required":
        missing = sorted(set(error.validator_value) - set(error.instance))
        return f"config key {where} lacks {missing[0]}; config/README.md explains it"
    if error.validator in ("enum", "const"):
        allowed = [str(v) for v in error.schema.get("enum", [error.schema.get("const")])]
        meant = suggestion(str(error.instance), allowed)
        return f"config key {where} has {error.instance!r}{meant}"
    about = error.schema.get("description", "")
    return f"config key {where}: {error.message}{'; ' if about else ''}{about}"


def _known_keys(error: ValidationError) -> set[str]:
    known = set(error.schema.get("properties", {}))
    for branch in error.schema.get("oneOf", []):
        kind = branch["properties"]["kind"]["const"]
        if error.instance.get("kind") == kind:
            known |= set(branch["properties"])
    return known


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
