# SPDX-License-Identifier: Apache-2.0
"""Perplexity against a computation by hand, and the rows of the table on a tiny model."""

import math
from dataclasses import replace

import pytest
import torch

from comet.accuracy import perplexity as perplexity_module
from comet.accuracy.evaluate import Evaluation, evaluate_row
from comet.accuracy.perplexity import perplexity, window_losses
from comet.accuracy.rows import ROWS
from comet.data.windows import parse_windows, token_windows
from comet.errors import UserError
from comet.fmpq.layer import W4AxLinear
from comet.fmpq.pipeline import Calibration
from comet.methods.pipeline import apply_method
from comet.methods.registry import METHODS
from comet.models.folder import ModelFolder


@pytest.mark.parametrize(
    ("text", "expected"), [("0-5", [0, 1, 2, 3, 4, 5]), ("3", [3]), ("8,0-1,1", [0, 1, 8])]
)
def test_windows_are_parsed(text, expected):
    assert parse_windows(text) == expected


@pytest.mark.parametrize("text", ["", "a", "5-2", "1-", "1;2"])
def test_wrong_windows_are_one_line(text):
    with pytest.raises(UserError, match="windows"):
        parse_windows(text)


def test_windows_are_cut_from_the_start():
    assert token_windows(torch.arange(25), 10, [0, 1]).tolist() == [
        list(range(10)),
        list(range(10, 20)),
    ]
    assert token_windows(torch.arange(25), 10, parse_windows("all")).shape == (2, 10)
    with pytest.raises(UserError, match="2 windows of 10"):
        token_windows(torch.arange(25), 10, [2])


def test_perplexity_equals_the_definition():
    class Fixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, ids, use_cache):
            logits = torch.zeros(1, ids.shape[1], 4)
            logits[..., 1] = math.log(3)  # token 1 has probability 1/2, the others 1/6
            return type("Out", (), {"logits": logits})

    windows = torch.tensor([[0, 1, 1, 2], [3, 1, 1, 1]])
    losses = window_losses(Fixed(), windows, quiet=True)
    by_hand = (5 * math.log(2) + math.log(6)) / 6
    assert perplexity(losses, 4) == pytest.approx(math.exp(by_hand), rel=1e-6)


def test_windows_are_scored_alike_one_by_one_and_together(monkeypatch):
    class Shifted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(7, 7))

        def forward(self, ids, use_cache):
            return type("Out", (), {"logits": self.weight[ids]})

    model, windows = Shifted(), torch.randint(0, 7, (5, 9))
    alone = window_losses(model, windows, skips=[1, 2, 3, 4, 8])
    monkeypatch.setattr(perplexity_module, "_windows_at_once", lambda *_: 2)
    assert window_losses(model, windows, skips=[1, 2, 3, 4, 8]) == pytest.approx(alone)
    assert len(set(alone)) == 5


def test_an_overflowing_model_is_one_line():
    with pytest.raises(UserError, match="not finite"):
        perplexity([math.nan], 10)


def evaluation(tiny, backend, **changes):
    row = ROWS[backend]
    checkpoint = row.checkpoint or row.method
    if row.method and not (tiny / row.method).exists():
        calibration = Calibration(tiny / "text.jsonl", "words", windows=2, context=64)
        apply_method(
            row.method,
            METHODS[row.method],
            ModelFolder(tiny / "model"),
            calibration,
            tiny / row.method,
        )
    return Evaluation(
        backend,
        "tiny",
        tiny / "model",
        "words",
        "test",
        tiny / "text.jsonl",
        context=128,
        windows="0-1",
        checkpoint=tiny / checkpoint if checkpoint else None,
        **changes,
    )


@pytest.fixture(scope="module")
def table(tiny):
    return {row: evaluate_row(evaluation(tiny, row, integer_windows=1), {}, 0)[0] for row in ROWS}


def test_every_row_gives_a_record_of_its_own(table):
    medians = {row: record.median for row, record in table.items()}
    assert all(record.status == "ok" for record in table.values())
    assert len(set(medians.values())) == len(ROWS)
    assert {record.metric for record in table.values()} == {"ppl_token_128"}


def test_finer_formats_stay_closer_to_16_bit(table):
    def distance(row):
        return abs(math.log(table[row].median / table["w16a16"].median))

    assert distance("rtn-w8a8") < distance("fmpq-w4a4")
    assert distance("w16a16-kv4") < distance("fmpq-w4a4")


def test_the_integer_reference_is_compared_where_activations_are_integers(table):
    for row, record in table.items():
        check = record.method["integer_check"]
        if ROWS[row].activations == "none":
            assert check is None
        else:
            assert 0 < check["layer_difference"] <= check["layer_tolerance"] == 1e-5
            assert check["model_difference"] < 0.1


def test_the_same_seed_gives_the_same_number(tiny, table):
    again = evaluate_row(evaluation(tiny, "fmpq-w4axkv4"), {}, 0)[0]
    assert again.samples == table["fmpq-w4axkv4"].samples


def test_a_missing_checkpoint_is_one_line(tiny):
    with pytest.raises(UserError, match="needs the quantized model fmpq"):
        evaluate_row(replace(evaluation(tiny, "fmpq-w4ax"), checkpoint=None), {}, 0)


def test_a_layer_that_disagrees_fails_the_row(tiny, monkeypatch):
    def wrong(layer, x):
        return layer._fake(x) * 1.001

    monkeypatch.setattr(W4AxLinear, "_integer", wrong)
    record = evaluate_row(evaluation(tiny, "fmpq-w4ax", integer_windows=1), {}, 0)[0]
    assert record.status == "failed" and record.median is None
    assert "in a layer" in record.reason
