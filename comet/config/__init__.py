# SPDX-License-Identifier: Apache-2.0
"""The configuration: layers of YAML files, checked before any work starts."""

import tempfile
from pathlib import Path

from comet.accuracy.cases import FMPQ_CHECKPOINTS, accuracy_cases, checkpoint_of, fmpq_section
from comet.config.entries import FAMILIES, check_models, check_texts
from comet.config.layers import merge, read_yaml
from comet.config.names import check_known
from comet.config.schema import conform
from comet.config.sections import check_sections, check_windows
from comet.errors import UserError
from comet.measurements import REPOSITORY

__all__ = [
    "FAMILIES",
    "FMPQ_CHECKPOINTS",
    "REPOSITORY",
    "accuracy_cases",
    "check",
    "check_windows",
    "checkpoint_of",
    "fmpq_section",
    "load_config",
    "merge",
]

DEFAULT = REPOSITORY / "config" / "config.yaml"


def load_config(paths: list[Path | str] = ()) -> dict:
    """``config/config.yaml`` with the given files merged over it, checked.

    Raises:
        UserError: a file is missing or no YAML, or the result does not pass ``check``.
    """
    config = {}
    for path in (DEFAULT, *paths):
        config = merge(config, read_yaml(Path(path)))
    check(config)
    return config


def check(config: dict, figures: tuple[str, ...] | None = None) -> None:
    """Check a merged configuration and fill in the defaults of the schema, in place.

    Args:
        config: the configuration.
        figures: names of the figures that exist; None leaves figure names unchecked.

    Raises:
        UserError: the first thing that is wrong, in one line.
    """
    conform(config)
    check_models(config)
    check_texts(config)
    check_sections(config)
    if figures is not None and config["figures"] != "all":
        check_known(config["figures"], figures, "figures", "figure")
    _check_writable(Path(config["results"]))


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
