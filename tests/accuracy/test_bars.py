# SPDX-License-Identifier: Apache-2.0
"""What the default method must reach on the default model: WikiText-2 raw, windows 0-5 of 1024."""

import math

import pytest

from comet.accuracy.evaluate import Evaluation, evaluate_row
from comet.accuracy.rows import ROWS
from comet.data.entries import TextEntry
from comet.data.prepare import prepare_text
from comet.fmpq.options import PLUS, FMPQOptions
from comet.fmpq.pipeline import Calibration, quantize_model
from comet.methods.pipeline import apply_method
from comet.methods.registry import METHODS
from comet.models.entries import ModelEntry
from comet.models.folder import ModelFolder
from comet.models.prepare import prepare_model

pytestmark = pytest.mark.needs_data
MODEL = "smollm2-135m"
# Round-to-nearest on the asymmetric g128 grid of the methods; the row rtn-w4a16 is symmetric.
RTN_ASYMMETRIC = 38.12


@pytest.fixture(scope="module")
def place(tmp_path_factory, default_config, real_downloads, test_data):
    base = tmp_path_factory.mktemp("bars")
    entry = ModelEntry.from_config(MODEL, default_config["models"][MODEL])
    prepare_model(entry, {MODEL: entry}, base / "model", real_downloads)
    boolq = TextEntry.from_config("boolq-passages", default_config["texts"]["boolq-passages"])
    prepare_text(boolq, base / "boolq", real_downloads)
    raw = {
        "kind": "file",
        "path": str(test_data / "wikitext-2" / "wiki.test.raw"),
        "format": "wikitext-raw",
    }
    wikitext = TextEntry.from_config("wikitext-2", {"label": "WikiText-2", "source": raw})
    prepare_text(wikitext, base / "wikitext", real_downloads)
    return base


@pytest.fixture(scope="module")
def score(place):
    """Perplexity of a row, its checkpoint made on first use; with ``end_loss`` on demand."""
    known = {}

    def scored(backend: str, end_loss: bool = False) -> float:
        row = ROWS[backend]
        checkpoint = row.checkpoint or row.method
        calibration = Calibration(place / "boolq" / "calibration.jsonl", "boolq", 12, 1024)
        folder = ModelFolder(place / "model")
        if row.method and not (place / checkpoint).exists():
            apply_method(checkpoint, METHODS[checkpoint], folder, calibration, place / checkpoint)
        kept = f"{checkpoint}-end-loss" if end_loss else checkpoint
        if row.checkpoint and not (place / kept).exists():
            options = PLUS if checkpoint == "fmpq-plus" else {}
            options = FMPQOptions(**options, end_loss=end_loss)
            known[kept] = quantize_model(
                folder, calibration, place / kept, options, checkpoint, MODEL, {}, seed=0
            )
        if (backend, end_loss) not in known:
            evaluation = Evaluation(
                backend,
                MODEL,
                place / "model",
                "wikitext-2",
                "test",
                place / "wikitext" / "test.jsonl",
                context=1024,
                windows="0-5",
                checkpoint=place / kept if checkpoint else None,
            )
            known[backend, end_loss] = evaluate_row(evaluation, {}, 0)[0].median
        return known[backend, end_loss]

    scored.known = known
    return scored


def test_sixteen_bit_is_the_known_baseline(score):
    assert score("w16a16") == pytest.approx(26.99, abs=0.05)


def gap_closed(score, backend):
    """Share of the way from W4A4 to W4A16 in log perplexity, both on weights in natural order."""
    worst, best = score("fmpq-w4a4"), score("fmpq-w4a16")
    return math.log(worst / score(backend)) / math.log(worst / best)


def int8_shares(score, checkpoint):
    return [r.median for r in score.known[checkpoint] if r.metric == "int8_block_share"]


def test_four_bit_weights(score):
    assert score("fmpq-w4a16") <= 33.0


def test_four_bit_weights_and_activations_are_the_known_reference(score):
    assert score("fmpq-w4a4") == pytest.approx(225, rel=0.1)


def test_mixed_precision_with_at_most_a_fifth_of_blocks_in_int8(score):
    assert score("fmpq-w4ax") <= 42.4
    assert gap_closed(score, "fmpq-w4ax") >= 0.86
    shares = int8_shares(score, "fmpq")
    assert len(shares) == 30 and max(shares) <= 20


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gptq-w4a16", "awq-w4a16"])
def test_methods_beat_round_to_nearest(score, backend):
    assert score(backend) < RTN_ASYMMETRIC < score("rtn-w4a16")


@pytest.mark.slow
def test_beyond_the_paper_with_the_same_blocks_in_int8(score):
    assert score("fmpq-plus-w4ax") <= 37.7
    assert gap_closed(score, "fmpq-plus-w4ax") >= 0.92
    assert int8_shares(score, "fmpq-plus") == int8_shares(score, "fmpq")


@pytest.mark.slow
def test_tokens_weighed_by_the_loss_reach_the_goal(score):
    """The gap closed needs more rows; ``results/cpu`` has them."""
    assert score("fmpq-plus-w4ax", end_loss=True) <= 35.6


def test_the_kv_cache_costs_at_most_three_percent(score):
    assert score("w16a16-kv4") <= 1.03 * score("w16a16")
    assert score("fmpq-w4axkv4") <= 1.03 * score("fmpq-w4ax")
