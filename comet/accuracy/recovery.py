# SPDX-License-Identifier: Apache-2.0
"""How rows are judged: share of the gap closed, change against 16 bit, each with its error.

Only rows on the same model, text, windows and context are compared, and items of tasks in the same
number. Everything is computed from the records alone.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from comet.accuracy.statistics import (
    Estimate,
    accuracy_difference,
    accuracy_ratio,
    gap_estimate,
    items_of,
    loss_ratio,
    mean_losses,
)
from comet.data.window_numbers import parse_windows

EXACT, W4A16, W4A4 = "w16a16", "fmpq-w4a16", "fmpq-w4a4"
UNQUANTIZED = "16 bit"
# Defaults of the method were chosen on these windows of this many tokens.
CHOSEN, CHOSEN_CONTEXT = range(6), 1024
TEXT = ("model", "dataset", "split", "context", "windows")
TASK = ("model", "limit")
METRICS = ("acc", "acc_norm")


@dataclass(frozen=True)
class TextRow:
    """One row on one text.

    Attributes:
        backend: the row.
        perplexity: its perplexity.
        change: relative change of perplexity against 16 bit; None where that was not measured.
        gap: share of the 16-bit to W4A4 gap of activations that it closes; None where one of the
            two ends was not measured.
    """

    backend: str
    perplexity: float
    change: Estimate | None
    gap: Estimate | None


@dataclass(frozen=True)
class TaskCell:
    """One row on one task: accuracy, lm-eval's standard error, difference from 16 bit, items.

    Items are the record's: a ``1`` for each that was answered right, in order.
    """

    value: float
    stderr: float
    difference: Estimate | None
    items: str


@dataclass(frozen=True)
class TaskRow:
    """One row on all tasks that it was scored on.

    Attributes:
        backend: the row.
        cells: task -> score.
        mean, stderr: mean over the tasks and its standard error (tasks are independent).
        relative: accuracy of all items relative to 16 bit on the same items, or None.
    """

    backend: str
    cells: dict[str, TaskCell]
    mean: float
    stderr: float
    relative: Estimate | None


def is_text(record: dict) -> bool:
    """Whether a record is a row's perplexity, and not a variant of some study."""
    ours = record["metric"].startswith("ppl_token_") and record["status"] == "ok"
    return ours and not ({"options", "kv", "protocol"} & set(record["case"]))


def condition(record: dict, keys: tuple[str, ...] = TEXT) -> tuple:
    """What has to agree before two records may be compared."""
    return tuple(record["case"].get(key) for key in keys)


def text_rows(records: Iterable[dict]) -> dict[tuple, list[TextRow]]:
    """Rows by condition (``TEXT``), in the order of the records."""
    groups: dict[tuple, dict[str, dict]] = {}
    for record in filter(is_text, records):
        groups.setdefault(condition(record), {})[record["backend"]] = record
    return {key: [_text_row(name, group) for name in group] for key, group in groups.items()}


def split_windows(records: Iterable[dict]) -> list[dict]:
    """Records on more windows than ``CHOSEN`` as two: those that chose defaults, and the held-out.

    Windows of another length than ``CHOSEN_CONTEXT`` are other tokens; they stay together.
    """
    found = []
    for record in records:
        if not is_text(record) or record["case"]["context"] != CHOSEN_CONTEXT:
            found.append(record)
            continue
        case, sums = record["case"], record["method"].get("window_losses", [])
        numbers = parse_windows(case["windows"]) or list(range(len(sums)))
        chosen = {n for n in numbers if n in CHOSEN}
        held_out = [n for n in numbers if n not in chosen]
        if len(chosen) < len(CHOSEN) or not held_out or len(sums) != len(numbers):
            found.append(record)
            continue
        of_window = dict(zip(numbers, sums, strict=True))
        found += [_part(record, part, of_window) for part in (sorted(chosen), held_out)]
    return found


def _part(record: dict, numbers: list[int], of_window: dict[int, float]) -> dict:
    sums = [of_window[number] for number in numbers]
    whole = numbers == list(range(numbers[0], numbers[-1] + 1))
    windows = f"{numbers[0]}-{numbers[-1]}" if whole else ",".join(map(str, numbers))
    value = math.exp(float(mean_losses(sums, record["case"]["context"]).mean()))
    return record | {
        "case": record["case"] | {"windows": windows},
        "method": record["method"] | {"window_losses": sums},
        "median": value,
        "samples": [value],
    }


def compare(records: Iterable[dict], key: tuple, first: str, second: str) -> Estimate:
    """Relative change of perplexity from row ``second`` to row ``first`` of one condition."""
    losses = {
        record["backend"]: _losses(record)
        for record in filter(is_text, records)
        if condition(record) == key
    }
    return loss_ratio(losses[first], losses[second])


def _losses(record: dict):
    sums = record["method"].get("window_losses")
    return None if sums is None else mean_losses(sums, record["case"]["context"])


def _text_row(name: str, group: dict[str, dict]) -> TextRow:
    losses = {backend: _losses(record) for backend, record in group.items()}
    own, exact, high, low = (losses.get(key) for key in (name, EXACT, W4A16, W4A4))
    change = gap = None
    if own is not None and exact is not None and name != EXACT:
        change = loss_ratio(own, exact)
    if all(part is not None for part in (own, high, low)) and name not in (W4A16, W4A4):
        gap = gap_estimate(own, high, low)
    return TextRow(name, group[name]["median"], change, gap)


def kv_changes(records: Iterable[dict]) -> dict[tuple, list[tuple[str, Estimate]]]:
    """Change of perplexity by each variant of the KV cache, by condition and set of variants."""
    groups: dict[tuple, dict[str, dict]] = {}
    for record in records:
        kv = record["case"].get("kv")
        if kv and record["status"] == "ok":
            key = (*condition(record), kv["set"])
            groups.setdefault(key, {})[kv["variant"]] = record
    found = {}
    for key, group in groups.items():
        exact = group.pop(UNQUANTIZED, None)
        if exact is not None:
            found[key] = [
                (label, loss_ratio(_losses(record), _losses(exact)))
                for label, record in sorted(group.items(), key=_variant_order)
            ]
    return found


def _variant_order(item: tuple[str, dict]) -> tuple:
    """Layers by number, everything else by what it costs."""
    label, record = item
    number = label.removeprefix("layer ")
    return (int(number), 0.0) if number.isdigit() else (0, record["median"])


def task_rows(records: Iterable[dict], metric: str) -> dict[tuple, list[TaskRow]]:
    """Rows by model and limit, for one metric.

    ``acc_norm`` takes ``acc`` for a task that has no other, as published averages do.
    """
    groups: dict[tuple, dict[str, dict[str, dict]]] = {}
    for record in records:
        task = record["case"].get("task")
        if not task or record["status"] != "ok" or record["metric"] not in ("acc", metric):
            continue
        tasks = groups.setdefault(condition(record, TASK), {}).setdefault(record["backend"], {})
        if task not in tasks or record["metric"] == metric:
            tasks[task] = record
    return {
        key: [_task_row(name, tasks, group.get(EXACT, {})) for name, tasks in group.items()]
        for key, group in groups.items()
    }


def _task_row(name: str, tasks: dict[str, dict], exact: dict[str, dict]) -> TaskRow:
    cells = {task: _task_cell(record, exact.get(task)) for task, record in tasks.items()}
    count = len(cells)
    variance = sum(cell.stderr**2 for cell in cells.values())
    relative = None
    if name != EXACT and set(tasks) <= set(exact):
        own, other = (
            items_of("".join(group[task]["method"]["items"] for task in tasks))
            for group in (tasks, exact)
        )
        relative = accuracy_ratio(own, other) if len(own) == len(other) else None
    mean = sum(cell.value for cell in cells.values()) / count
    return TaskRow(name, cells, mean, math.sqrt(variance) / count, relative)


def _task_cell(record: dict, exact: dict | None) -> TaskCell:
    items, difference = record["method"]["items"], None
    if exact is not None and record["backend"] != EXACT:
        difference = paired_difference(items, exact["method"]["items"])
    return TaskCell(record["median"], record["method"]["stderr"], difference, items)


def paired_difference(items: str, other: str) -> Estimate | None:
    """Accuracy of ``items`` minus that of ``other``; None where they are not the same items."""
    if len(items) != len(other):
        return None
    return accuracy_difference(items_of(items), items_of(other))
