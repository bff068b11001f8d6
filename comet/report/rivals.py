# SPDX-License-Identifier: Apache-2.0
"""FMPQ beside the other methods with 4-bit activations, paired over windows."""

from comet.accuracy.cases import fmpq_section
from comet.accuracy.recovery import TEXT, compare, condition, split_windows, text_rows
from comet.accuracy.rows import row_named

OURS = {"fmpq-w4ax": "FMPQ", "fmpq-plus-w4ax": "FMPQ+"}
RIVALS = (
    "hadamard-w4a4",
    "quarot-w4a4",
    "quarot-g128-w4a4",
    "atom-w4a4",
    "atom-weighted-w4a4",
    "omniquant-w4a4",
)
ROTATED = "hadamard-w4a4"
# Asymmetric GPTQ on searched ranges in groups of 128, as FMPQ's; the others are as published.
EQUAL_WEIGHTS = (ROTATED, "quarot-g128-w4a4", "atom-weighted-w4a4")
SAME, UNLIKE, OWN = "same effort", "the same but for the weight of tokens", "as published"
INTRODUCTION = (
    "Each change is that of perplexity from the other method to FMPQ on the same windows, with its "
    "paired standard error; below zero FMPQ is better. Weights of the same effort are asymmetric "
    "GPTQ on searched ranges in groups of 128, calibration tokens weighed alike (option end_loss); "
    "those of other methods are as published. COMET compares itself with none of these."
)


def rival_summary(records: list[dict], reference: list[dict]) -> dict:
    """Sentences and rows of the report; of this run where it has any, else of the reference runs.

    Args:
        records, reference: measurements as dictionaries.

    Returns:
        ``sentences``, and ``rows`` of text: one for each text and rival.
    """
    for source in map(split_windows, (records, reference)):
        if rows := _rows(source):
            return {"sentences": [INTRODUCTION, *_verdicts(source)], "rows": rows}
    return {"sentences": [], "rows": []}


def _rows(records: list[dict]) -> list[dict[str, str]]:
    found = []
    for key, perplexity in _perplexities(records):
        for rival in RIVALS:
            if rival not in perplexity:
                continue
            row = _place(key) | {"Other method": rival, "perplexity": f"{perplexity[rival]:.2f}"}
            row["its weights"] = _effort(records, key, rival)
            for own, label in OURS.items():
                row[label] = f"{perplexity[own]:.2f}" if own in perplexity else ""
                row[f"{label} against it"] = ""
                if own in perplexity:
                    change = compare(records, key, own, rival)
                    row[f"{label} against it"] = f"{change.value:+.1%} \u00b1 {change.stderr:.1%}"
            found.append(row)
    return found


def _perplexities(records: list[dict]):
    """(condition, perplexity by row) where FMPQ was measured."""
    for key, rows in text_rows(records).items():
        perplexity = {row.backend: row.perplexity for row in rows}
        if set(OURS) & set(perplexity):
            yield key, perplexity


def _effort(records: list[dict], key: tuple, rival: str) -> str:
    """What a rival's weights are beside FMPQ's."""
    if rival not in EQUAL_WEIGHTS:
        return OWN
    weighed = {r["backend"]: _end_loss(r) for r in records if condition(r) == key}
    ours = {weighed[own] for own in OURS if own in weighed}
    return SAME if ours == {weighed[rival]} else UNLIKE


def _end_loss(record: dict) -> bool:
    """Whether the row's calibration tokens count by what they cost the model's loss."""
    config, backend = record.get("provenance", {}).get("config", {}), record["backend"]
    if backend in OURS:
        sections = {"fmpq": {}, "fmpq_plus": {}} | config
        options = fmpq_section(sections, row_named(backend).checkpoint)
    else:
        options = config.get("methods", {}).get(backend, {})
    return bool(options.get("end_loss", False))


def _place(key: tuple) -> dict[str, str]:
    case = dict(zip(TEXT, key, strict=True))
    text = f"{case['dataset']}, context {case['context']}, windows {case['windows']}"
    return {"Model": case["model"], "Text": text}


def _verdicts(records: list[dict]) -> list[str]:
    """What the control says: rotation of every input, without any INT8."""
    sentences = []
    for key, perplexity in _perplexities(records):
        for own, label in OURS.items():
            if own not in perplexity or ROTATED not in perplexity:
                continue
            change, place = compare(records, key, own, ROTATED), _place(key)
            effort = _effort(records, key, ROTATED)
            equal = "at equal weight effort" if effort == SAME else f"with weights {effort}"
            verdict = f"does not differ from {label}"
            if change.beyond_two:
                verdict = f"{'beats' if change.value > 0 else 'is worse than'} {label}"
            sentences.append(
                f"{place['Model']}, {place['Text']}: rotation of every input without any INT8 "
                f"{verdict} {equal} (perplexity {perplexity[ROTATED]:.2f} against "
                f"{perplexity[own]:.2f}, judged by two paired standard errors)."
            )
    return sentences
