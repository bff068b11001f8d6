# SPDX-License-Identifier: Apache-2.0
"""The doctor's report as lines of at most 80 columns."""

import textwrap

WIDTH = 80
LABEL = 16


def as_text(report: dict) -> str:
    """The report for a terminal: all targets, or where one was asked for, that one alone."""
    asked = [row for row in report["targets"] if report["target"] in ("all", row["name"])]
    numbers = _numbers(report, asked)
    lines = ["Machine", *_machine(report["machine"])]
    used = [name for name in report["sources"] if any(name in row["sources"] for row in asked)]
    if used:
        lines += ["", "Models and texts"]
    for name in used:
        state = report["sources"][name]
        lines += _row(name.partition(":")[2] or name, f"{state['state']}: {state['what']}", 26)
    lines += ["", "Rivals"]
    for name, state in report["rivals"].items():
        lines += _row(name, state["found"] or "not found")
    lines += ["", f"Targets under {', '.join(report['configs']) or 'config/config.yaml'}"]
    for row in asked:
        lines += _target(row, numbers)
    if numbers:
        lines += ["", "What is missing, and how to get it"]
    for name, number in numbers.items():
        lines += _problem(number, report["problems"][name])
    return "\n".join([*lines, "", _verdict(report)])


def _numbers(report: dict, rows: list[dict]) -> dict[str, int]:
    """Problems of the shown targets, blocking ones first, numbered."""
    blocking = [name for row in rows for name in row["blocked_by"]]
    skipping = [name for row in rows if row["state"] == "partly" for name in row["skips"]]
    if not report["targets"]:
        blocking = [name for name in ("packages", "config") if name in report["problems"]]
    return {name: i for i, name in enumerate(dict.fromkeys(blocking + skipping), 1)}


def _wrap(text: str, first: str, rest: str) -> list[str]:
    """Lines of words; a long path stays whole, so that it can be copied."""
    whole = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, **whole)


def _row(label: str, text: str, width: int = LABEL) -> list[str]:
    return _wrap(text, f"  {label:{width - 1}} ", " " * (width + 2)) or [f"  {label}"]


def _machine(facts: dict) -> list[str]:
    lines = []
    for gpu in facts["gpus"]:
        busy = f"; used by {', '.join(gpu['used_by'])}" if gpu["used_by"] else ""
        text = f"{gpu['name']}, {gpu['memory_gib']:g} GiB, compute {gpu['compute_capability']}"
        lines += _row(f"GPU {gpu['index']}", text + busy)
    if not facts["gpus"]:
        lines += _row("GPU", f"none: {facts['gpu_missing']}")
    counters = {True: "permitted", False: "refused to users", None: "no driver"}
    table = {
        "driver": facts["driver"] or "none",
        "torch": _torch(facts),
        "nvcc": _nvcc(facts),
        "g++": facts["cxx"] or "none",
        "counters": f"{facts['counters']['ncu'] or 'no ncu'}; "
        f"{counters[facts['counters']['permitted']]}",
        "Python": facts["python"],
        "cores": str(facts["cores"]),
        "memory": f"{facts['memory_gib']:g} GiB",
        "disk": f"{facts['disk_free_gib']:g} GiB free",
    }
    for label, text in table.items():
        lines += _row(label, text)
    return lines


def _torch(facts: dict) -> str:
    if not facts["torch"]:
        return "none"
    return (
        f"{facts['torch']}, {'CUDA ' + facts['torch_cuda'] if facts['torch_cuda'] else 'no CUDA'}"
    )


def _nvcc(facts: dict) -> str:
    return f"{facts['nvcc_version']}, {facts['nvcc']}" if facts["nvcc"] else "none"


def _target(row: dict, numbers: dict[str, int]) -> list[str]:
    if row["state"] == "blocked":
        blockers = " ".join(f"[{numbers[name]}]" for name in row["blocked_by"])
        return _row(row["name"], f"{'cannot run':12}{blockers}")
    words = [f"without {', '.join(parts)} [{numbers[n]}]" for n, parts in row["skips"].items()]
    if row["note"]:
        words.append(row["note"])
    if row["minutes"] is not None:
        words.append(f"about {_time(row['minutes'])} ({row['minutes_from']})")
    state = "runs" if row["state"] == "runs" else "in part"
    return _row(row["name"], f"{state:12}{'; '.join(words)}")


def _time(minutes: float) -> str:
    return f"{minutes / 60:.1f} hours" if minutes >= 120 else f"{minutes:g} minutes"


def _problem(number: int, problem: dict) -> list[str]:
    lines = _wrap(problem["what"], f"  [{number}] ", "      ")
    return lines + (_wrap(problem["get"], "      -> ", "         ") if problem["get"] else [])


def _verdict(report: dict) -> str:
    if not report["targets"]:
        return "Which targets run cannot be told before the packages are installed."
    (row,) = [row for row in report["targets"] if row["name"] == report["target"]]
    if row["state"] == "blocked":
        return f"{row['name']} cannot run on this machine."
    files = f" --configfile {' '.join(report['configs'])}" if report["configs"] else ""
    words = {"runs": "runs", "partly": "runs in part"}[row["state"]]
    name = "" if row["name"] == "all" else f" {row['name']}"
    return f"{row['name']} {words} on this machine: snakemake --cores all{name}{files}"
