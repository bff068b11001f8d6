# SPDX-License-Identifier: Apache-2.0
"""Ways to score a text, on a model whose probabilities are known."""

import math

import pytest
import torch
from tiny_models import tiny_config, write_model, write_text, write_tokenizer
from transformers import AutoTokenizer

from comet.accuracy.evaluate import Evaluation, evaluate_row
from comet.accuracy.perplexity import window_losses
from comet.accuracy.protocol import Audit, audit_protocol


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    base = tmp_path_factory.mktemp("protocol")
    write_model(base / "model", tiny_config("llama", max_position_embeddings=256))
    write_tokenizer(base / "model")
    tokenizer = AutoTokenizer.from_pretrained(base / "model")
    tokenizer.bos_token = "<unk>"
    tokenizer.save_pretrained(base / "model")
    text = write_text(base / "text.jsonl")
    return Audit("w16a16", "tiny", base / "model", "words", text, 64, (32, 128), 256)


@pytest.fixture(scope="module")
def records(audit):
    return audit_protocol(audit, {}, 0)


def one(records, choice, value=None, metric="ppl_token"):
    (found,) = [
        r
        for r in records
        if r.case["protocol"]["choice"] == choice
        and value in (None, r.case["protocol"]["value"])
        and r.metric.startswith(metric)
    ]
    return found


def test_every_way_is_scored_per_token_and_per_word(records):
    choices = {(r.case["protocol"]["choice"], r.case["protocol"]["value"]) for r in records}
    assert {name for name, _ in choices} == {"usual", "context", "overlap", "BOS", "joiner"}
    assert {value for name, value in choices if name == "context"} == {"32", "128"}
    assert {value for name, value in choices if name == "joiner"} == {"''", repr("\n")}
    assert len(records) == 2 * len(choices)


def test_the_usual_way_is_the_row_of_the_table(audit, records):
    row = Evaluation("w16a16", "tiny", audit.model_folder, "words", "test", audit.text, 64, "0-3")
    usual = one(records, "usual")
    assert usual.median == pytest.approx(evaluate_row(row, {}, 0)[0].median, rel=1e-6)
    assert usual.method["scored_tokens"] == 4 * 63


def test_a_word_costs_what_its_tokens_cost(records):
    token, word = one(records, "usual"), one(records, "usual", metric="ppl_word")
    ratio = token.method["scored_tokens"] / token.method["words"]
    assert math.log(word.median) == pytest.approx(math.log(token.median) * ratio)


def test_bos_and_overlap_score_every_token_once(records):
    assert one(records, "BOS").method["scored_tokens"] == 4 * 63
    overlap = one(records, "overlap")
    assert overlap.method["scored_tokens"] == 63 + 6 * 32 and overlap.case["windows"] == "0-6"


def test_only_what_follows_the_skipped_tokens_is_scored():
    class Fixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, ids, use_cache):
            return type("Out", (), {"logits": torch.zeros(1, ids.shape[1], 4)})

    windows = torch.zeros(2, 10, dtype=torch.long)
    assert window_losses(Fixed(), windows, skips=[1, 7]) == pytest.approx(
        [9 * math.log(4), 3 * math.log(4)]
    )
