# SPDX-License-Identifier: Apache-2.0
"""The study of the KV cache on a tiny model."""

import pytest
from tiny_models import tiny_config, write_model, write_text, write_tokenizer

from comet.accuracy.kv4_study import DEFAULT, EXACT, SETS, KV4Study, compare_variants, variants
from comet.accuracy.kv_quantization import KVQuantization


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    base = tmp_path_factory.mktemp("kv4")
    write_model(base / "model", tiny_config("llama", hidden_size=128, max_position_embeddings=160))
    write_tokenizer(base / "model")
    write_text(base / "text.jsonl")
    return base


def study(place, name):
    text = place / "text.jsonl"
    return KV4Study("tiny", place / "model", name, "words", text, context=130, tokens=260)


def test_sets_hold_different_variants_that_contain_the_default():
    for name in ("granularity", "bits", "skip"):
        found = list(variants(name, 6).values())
        assert len(found) == len(set(found))
        assert any(v.options == KVQuantization() and v.layers is None for v in found)
    assert [v.layers for v in variants("layers", 3).values()] == [(0,), (1,), (2,)]
    skipped = variants("skip", 6)
    assert skipped["first 2 in 16 bit"].layers == (2, 3, 4, 5)
    assert skipped["last 2 in 16 bit"].layers == (0, 1, 2, 3)


@pytest.mark.parametrize("name", SETS)
def test_every_variant_leaves_a_record(place, name):
    # Four layers at each end cannot be skipped in a model of three; a slice just ends.
    records = compare_variants(study(place, name), {}, 0)
    labels = [record.case["kv"]["variant"] for record in records]
    assert labels == [EXACT, *variants(name, 3)]
    exact = records[0]
    assert all(record.metric == "ppl_token_130" for record in records)
    assert all(len(record.method["window_losses"]) == 2 for record in records)
    others = [record.median for record in records[1:] if record.method["layers"] not in ([],)]
    assert all(value != exact.median for value in others)


def test_the_default_is_the_row_of_the_table(place):
    from comet.accuracy.evaluate import Evaluation, evaluate_row

    value = compare_variants(study(place, "granularity"), {}, 0)[1]
    assert value.case["kv"]["variant"] == DEFAULT
    text = place / "text.jsonl"
    row = Evaluation("w16a16-kv4", "tiny", place / "model", "words", "test", text, 130, "0-1")
    assert value.median == pytest.approx(evaluate_row(row, {}, 0)[0].median, rel=1e-6)
