# SPDX-License-Identifier: Apache-2.0
"""Layers of YAML files, laid over each other."""

from pathlib import Path

import yaml

from comet.errors import UserError


def read_yaml(path: Path) -> dict:
    """The mapping that a file holds.

    Raises:
        UserError: there is no such file, or it holds something else.
    """
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


def merge(base: dict, over: dict) -> dict:
    """``over`` laid over ``base`` as Snakemake does: mappings merge, anything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged
