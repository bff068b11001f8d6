# SPDX-License-Identifier: Apache-2.0
"""The audit of how perplexities are scored: measured here, and in the paper's table."""

from pathlib import Path

from comet.accuracy.recovery import TEXT, compare, split_windows, text_rows
from comet.figures.published import rows as published_rows

USUAL = "usual"
GRANULARITY = (
    ("gptq-w4a16-channel", "gptq-w4a16"),
    ("awq-w4a16-channel", "awq-w4a16"),
    ("omniquant-w4a16-channel", "omniquant-w4a16"),
    ("qoq-w4a8kv4", "qoq-g128-w4a8kv4"),
    ("quarot-w4a4", "quarot-g128-w4a4"),
)
SENTENCES = [
    "A perplexity is a number of its protocol: which tokens are scored, after how much context, "
    "and what the sum is divided by. Each row below changes one choice; the loss is that of the "
    "quantized row over 16 bit under the same choice.",
    "A choice that moves 16 bit and quantized rows alike does no harm inside one table. It does "
    "where a table mixes protocols, as the paper's Table 1 does in its LLaMA-2 columns.",
]
NOTHING = (
    "No way of scoring was measured in this run: config/accuracy_full.yaml names a model for it."
)


def protocol_summary(records: list[dict], reference: list[dict], paper: Path | None) -> dict:
    """Rows of the report; of this run where it measured any way, else of the reference runs.

    Args:
        records, reference: measurements as dictionaries.
        paper: folder of the published tables, or None.

    Returns:
        ``sentences``, and rows of text under ``ways``, ``granularity`` and ``paper``.
    """
    ways = _ways(records) or _ways(reference)
    return {
        "sentences": SENTENCES if ways else [*SENTENCES, NOTHING],
        "ways": ways,
        "granularity": _granularity(records) or _granularity(reference),
        "paper": _paper(paper) if paper else [],
    }


def _ways(records: list[dict]) -> list[dict[str, str]]:
    """One row for each model, text, choice: perplexity of each backend, and the loss."""
    found: dict[tuple, dict[tuple[str, str], float]] = {}
    for record in records:
        way = record["case"].get("protocol")
        if way and record["status"] == "ok":
            case = record["case"]
            key = (case["model"], case["dataset"], way["choice"], way["value"])
            unit = "word" if record["metric"] == "ppl_word" else "token"
            found.setdefault(key, {})[record["backend"], unit] = record["median"]
    backends = list(dict.fromkeys(name for values in found.values() for name, _ in values))
    order = sorted(found, key=lambda key: (key[:2], key[2] != USUAL))
    return [
        _way(key, found[key], found.get((*key[:2], *_usual(found, key))), backends) for key in order
    ]


def _usual(found: dict, key: tuple) -> tuple:
    return next((k[2:] for k in found if k[:2] == key[:2] and k[2] == USUAL), key[2:])


def _way(key: tuple, values: dict, usual: dict | None, backends: list[str]) -> dict[str, str]:
    model, dataset, choice, value = key
    row = {"Model": model, "Text": dataset, "Choice": choice, "Value": value}
    exact = backends[0] if "w16a16" not in backends else "w16a16"
    for backend in backends:
        token, word = values.get((backend, "token")), values.get((backend, "word"))
        before = (usual or {}).get((backend, "token"))
        row[f"{backend}, per token"] = _number(token)
        row[f"{backend}, against the usual way"] = _change(token, before) if choice != USUAL else ""
        row[f"{backend}, per word"] = _number(word)
    for backend in backends:
        if backend != exact:
            row[f"loss of {backend}"] = _change(
                values.get((backend, "token")), values.get((exact, "token"))
            )
            row[f"loss of {backend} per word"] = _change(
                values.get((backend, "word")), values.get((exact, "word"))
            )
    return row


def _granularity(records: list[dict]) -> list[dict[str, str]]:
    """Rows with one scale per output channel beside the same method with groups of 128."""
    found, records = [], split_windows(records)
    for key, rows in text_rows(records).items():
        perplexity = {row.backend: row.perplexity for row in rows}
        for channel, group in GRANULARITY:
            if channel in perplexity and group in perplexity:
                change = compare(records, key, channel, group)
                text = f"{change.value:+.1%} \u00b1 {change.stderr:.1%}"
                case = dict(zip(TEXT, key, strict=True))
                found.append(
                    {
                        "Model": case["model"],
                        "Text": f"{case['dataset']}, windows {case['windows']}",
                        "Per channel": channel,
                        "its perplexity": f"{perplexity[channel]:.2f}",
                        "Groups of 128": group,
                        "perplexity": f"{perplexity[group]:.2f}",
                        "Per channel over groups": text,
                    }
                )
    return found


def _paper(paper: Path) -> list[dict[str, str]]:
    """FMPQ's loss in Table 1 as printed, and against 16 bit at context 2048 by other papers."""
    table = {
        (row["model"], row["bits"], row["method"]): float(row["ppl"])
        for row in published_rows(paper, "table1_perplexity.csv")
    }
    usual = {}
    for row in published_rows(paper, "peers_perplexity.csv"):
        plain = row["system"] == "full precision" and not row["reported_by"]
        if plain and row["context"] == "2048" and row["ppl"]:
            usual.setdefault(row["model"], float(row["ppl"]))
    rows = []
    for (model, _, method), printed in table.items():
        if method != "full precision":
            continue
        ours = table[model, "W4AxKV4", "FMPQ"]
        known = usual.get(model)
        mixed = known is not None and abs(known - printed) > 0.1
        rows.append(
            {
                "Model": model,
                "16 bit as printed": f"{printed:.2f}",
                "16 bit at context 2048, other papers": _number(known),
                "FMPQ W4AxKV4": f"{ours:.2f}",
                "Loss as printed": f"{ours - printed:+.2f}",
                "Loss at one context": f"{ours - known:+.2f}" if known else "unknown",
                "": "contexts are mixed" if mixed else "",
            }
        )
    return rows


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _change(value: float | None, base: float | None) -> str:
    return "" if value is None or base is None else f"{value / base - 1:+.1%}"
