# SPDX-License-Identifier: Apache-2.0
"""lm-eval's own zero-shot tasks: on local rows, or with the rows that lm-eval would fetch."""

import tempfile
from importlib.util import find_spec
from pathlib import Path

import yaml

from comet.errors import UserError

SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")


def harness_installed() -> bool:
    """Whether lm-eval can be imported; it is not imported."""
    return find_spec("lm_eval") is not None


def load_task(name: str, folder: str, split: str, rows: Path):
    """lm-eval's task, its data set replaced by local rows and nothing else.

    Args:
        name: lm-eval's name of the task.
        folder: where its configuration is, inside ``lm_eval/tasks``.
        split: the split that is scored.
        rows: JSON Lines in the columns of lm-eval's data set.

    Returns:
        lm-eval's task object, zero-shot.
    """
    from lm_eval.tasks import TaskManager

    with tempfile.TemporaryDirectory() as place:
        changed = {
            "include": str(_stock_file(name, folder)),
            "task": name,
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {
                "data_files": {split: str(Path(rows).resolve())},
                "cache_dir": place,
                "keep_in_memory": True,
            },
            **dict.fromkeys(SPLITS),
            f"{split}_split": split,
            "num_fewshot": 0,
        }
        path = Path(place) / f"{name}.yaml"
        path.write_text(yaml.safe_dump(changed), encoding="utf-8")
        return TaskManager(include_defaults=False).load([str(path)])["tasks"][name]


def stock_rows(name: str, folder: str, split: str) -> tuple[list[dict], str]:
    """The rows that lm-eval itself would score, from the hub or its cache, and where from.

    Raises:
        UserError: there is neither a network nor a cached copy.
    """
    from lm_eval.tasks import TaskManager

    try:
        path = str(_stock_file(name, folder))
        task = TaskManager(include_defaults=False).load([path])["tasks"][name]
    except Exception as error:
        # The hub library raises errors of several unrelated packages when it is offline.
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(
            f"tasks: {name}: lm-eval cannot load its data set: {reason}; connect to a network, or "
            "take another tasks.source"
        ) from error
    return task.dataset[split].to_list(), f"{task.DATASET_PATH} ({task.DATASET_NAME})"


def _stock_file(name: str, folder: str) -> Path:
    """lm-eval's own configuration file of a task; its whole index would take seconds to build."""
    import lm_eval.tasks
    from lm_eval.tasks import TaskManager

    place = Path(lm_eval.tasks.__file__).parent / folder
    index = TaskManager(include_defaults=False, include_path=str(place)).task_index
    return index[name].yaml_path
