# SPDX-License-Identifier: Apache-2.0
"""Measured records join the published figures in their own mark, from their own run."""

import numpy as np
import pytest
import synthetic_records as synthetic
from matplotlib.colors import to_rgba

from comet.errors import UserError
from comet.figures import FigureInputs, arrays, draw, fig4, style

CPU = synthetic.ENVIRONMENT | {"device": "cpu"}


def solid(axes) -> list:
    return [p for p in axes.patches if p.get_facecolor() != to_rgba("white")]


def heights(patches) -> list[float]:
    return [pytest.approx(p.get_height()) for p in patches]


def heights_of(*values: float) -> list:
    return [pytest.approx(value) for value in values]


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_gemm_joins_fig9_as_speed_up_over_cublas_of_the_full_kernel(paper):
    figure = draw("fig9", FigureInputs(synthetic.gemm(m=16), paper))
    axes = figure.axes[4]  # below the published panel of the same batch
    assert len(figure.axes) == 7
    assert figure.axes[3].get_ylabel() == "batch 16"
    assert axes.get_title(loc="left") == "m = 16, measured on Test GPU"
    labels = [t.get_text() for t in axes.get_xticklabels()]
    assert labels == ["tiny\nqkv 512x256", "GeoMean"]
    assert heights(solid(axes)) == [3.0, 1.5, 3.0, 1.5]
    assert "measured (Test GPU)" in legend(figure)


def test_numbers_of_different_runs_are_not_compared(paper):
    records = synthetic.gemm()
    records[1]["provenance"] = records[1]["provenance"] | {"run_id": "another"}
    axes = draw("fig9", FigureInputs(records, paper)).axes[4]
    assert heights(solid(axes)) == [1.5, 1.5]


def test_ratios_above_the_ceiling_are_marked_and_the_control_is_explained(paper):
    records = synthetic.gemm(m=16)
    records[0]["median"] = 100.0  # ten times the time of W4Ax
    figure = draw("fig9", FigureInputs(records, paper))
    assert [text.get_text() for text in figure.axes[4].texts] == ["*", "*"]
    assert "* more than the limits of an H200 allow" in figure.get_supxlabel()
    assert "W4Ax cannot be faster than it there" in figure.get_supxlabel()


def test_other_modes_and_other_kernels_stay_out_of_fig9(paper):
    more = [r for r in synthetic.gemm(m=16) if r["backend"] == "comet-w4ax"]
    for record in more:
        record["case"] = record["case"] | {"act_scale": "token_block", "weight_scale": "group_fp"}
    axes = draw("fig9", FigureInputs(synthetic.gemm(m=16) + more, paper)).axes[4]
    assert heights(solid(axes)) == [3.0, 1.5, 3.0, 1.5]


def test_the_sm80_kernel_on_another_gpu_is_said_to_be_so(paper):
    records = synthetic.gemm()
    ampere = [dict(r, backend="comet-w4ax-sm80") for r in records if r["backend"] == "comet-w4ax"]
    for record in ampere:
        record["method"] = {"caution": "says nothing about an A100"}
    figure = draw("fig13", FigureInputs(records + ampere, paper))
    assert heights(solid(figure.axes[2])) == [1.5, 1.5]
    assert any("no-pipeline (sm_80 kernel through PTX)" in text for text in legend(figure))
    assert "says nothing about an A100" in figure.get_supxlabel()


def test_variants_join_the_ablations(paper):
    thirteen = draw("fig13", FigureInputs(synthetic.gemm(), paper))
    assert heights(solid(thirteen.axes[2])) == [1.5]
    fourteen = draw("fig14", FigureInputs(synthetic.gemm(), paper))
    assert heights(solid(fourteen.axes[2])) == [2.0, pytest.approx(20 / 15)]


def test_profiles_have_a_panel_for_each_quantity_that_was_seen(paper):
    figure = draw("sm_utilisation", FigureInputs(synthetic.profile(), paper))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [
        "tensor pipe active, % of cycles",
        "DRAM, % of peak",
        "power, W",
    ]
    assert heights(solid(figure.axes[0])) == [8.0, 95.0]
    groups = [t.get_text() for t in figure.axes[0].get_xticklabels()]
    assert groups == ["tiny\nqkv, m = 16", "tiny\nqkv, m = 256"]
    assert heights(solid(figure.axes[2])) == [690.0]


def test_nvml_stands_in_for_counters_that_are_not_there(paper):
    records = synthetic.profile()
    for record in records:
        record["metric"] = record["metric"].replace("dram_throughput", "gpm_dram_utilisation")
    records[2]["metric"] = "gpm_tensor_utilisation"
    titles = [
        a.get_title(loc="left") for a in draw("sm_utilisation", FigureInputs(records, paper)).axes
    ]
    assert titles == ["tensor pipe active, % of cycles", "DRAM, % of peak (NVML)", "power, W"]


def test_a_profile_without_counters_says_why(paper):
    skip = synthetic.skip("profile", {"model": "tiny"}, "power", "comet-w4ax")
    skip["metric"], skip["reason"] = "tensor_pipe_utilisation", "counters are refused"
    figure = draw("sm_utilisation", FigureInputs([skip], paper))
    (text,) = figure.axes[-1].texts
    assert text.get_text() == "not measured: comet-w4ax: counters are refused"


def test_attention_is_shown_against_the_faster_16_bit_kernel(paper):
    figure = draw("attention_speed", FigureInputs(synthetic.attention(), paper))
    (axes,) = figure.axes
    assert sorted(p.get_height() for p in solid(axes)) == heights_of(0.75, 0.75, 1, 1, 3, 3)
    assert [t.get_text() for t in axes.get_xticklabels()] == ["b 1\n4k*", "b 16\n4k"]
    assert "geometric mean over 1 of 26 rows: 3.00" in figure.get_supxlabel()
    alone = [r for r in synthetic.attention() if r["backend"] != "vllm-fa3-bf16"]
    (axes,) = draw("attention_speed", FigureInputs(alone, paper)).axes
    assert heights(solid(axes)) == [4.0, 4.0]


def test_kv_memory_is_modelled_and_says_what_is_saved(paper):
    figure = draw("kv_memory", FigureInputs(synthetic.attention(), paper))
    (axes,) = figure.axes
    assert {p.get_hatch() for p in axes.patches} == {"////"}
    assert [t.get_text() for t in axes.texts] == ["128.0", "64.0\n-50.0 %", "35.2\n-72.5 %"]
    assert axes.lines[0].get_ydata()[0] == 32.0


def test_serving_joins_the_end_to_end_figures(paper):
    ten = draw("fig10", FigureInputs(synthetic.serving(), paper))
    assert heights(solid(ten.axes[2])) == [0.5, 2.0]
    twelve = draw("fig12", FigureInputs(synthetic.serving((4, 16)), paper))
    assert heights(solid(twelve.axes[2])) == [0.5, 2.0]
    assert len(draw("fig12", FigureInputs(synthetic.serving((16,)), paper)).axes) == 2
    fifteen = draw("fig15", FigureInputs(synthetic.serving(), paper))
    assert heights(solid(fifteen.axes[2])) == [2.0]
    eleven = draw("fig11", FigureInputs(synthetic.serving(), paper))
    assert heights(solid(eleven.axes[1])) == [2.0, 1.0, 4.0, 8.0, 4.0, 16.0]


def test_as_many_requests_as_fit_stand_under_their_number(paper):
    records = synthetic.serving((4, 16))
    most = [r | {"case": r["case"] | {"requests": "max"}} for r in records[3:]]
    most = [r | {"method": {"served": 32}, "median": 2 * r["median"]} for r in most]
    eleven = draw("fig11", FigureInputs(records + most, paper)).axes[1]
    assert [label.get_text() for label in eleven.get_xticklabels()] == ["4", "16", "32 (max)"]
    assert heights(solid(eleven))[-1] == 32.0
    ten = draw("fig10", FigureInputs(records + most, paper)).axes[2]
    assert [label.get_text() for label in ten.get_xticklabels()][-1] == "tiny\n32 requests"


def test_published_models_that_have_not_run_say_so(paper):
    for name in ("fig10", "fig12", "fig15"):
        published, _, panel = draw(name, FigureInputs(synthetic.serving(), paper)).axes[:3]
        models = [label.get_text() for label in published.get_xticklabels()]
        models = [model for model in models if "average" not in model and model != "GeoMean"]
        assert [label.get_text() for label in panel.get_xticklabels()][:-1] == models
        assert [text.get_text() for text in panel.texts].count("not run") == len(models) == 7


def test_a_modelled_record_is_hatched(paper):
    records = synthetic.gemm(origin="modelled")
    axes = draw("fig9", FigureInputs(records, paper)).axes[4]
    assert {p.get_hatch() for p in axes.patches} == {"////"}


def test_a_skipped_record_is_said_once_and_draws_nothing(paper):
    skip = synthetic.skip("gemm", {"model": "tiny"}, "time", "comet-w4ax")
    figure = draw("fig9", FigureInputs([skip, skip], paper))
    said = [text.get_text() for text in figure.axes[-1].texts]
    assert said == [f"not measured: comet-w4ax: {synthetic.REASON}"]
    assert "measured (none here)" in legend(figure)


def test_the_reference_run_stands_in_and_is_named_as_such(paper):
    skip = synthetic.skip("gemm", {"model": "tiny"}, "time", "comet-w4ax")
    figure = draw("fig9", FigureInputs([skip], paper, reference=synthetic.gemm()))
    assert "measured (Test GPU, reference run)" in legend(figure)
    own = draw("fig9", FigureInputs(synthetic.gemm(environment=CPU), paper, None, synthetic.gemm()))
    assert "measured (cpu)" in legend(own)


def test_perplexity_names_text_context_and_windows(paper):
    records = synthetic.accuracy() + synthetic.accuracy(dataset="other")
    inputs = FigureInputs(records, paper, labels={"text": "A text", "tiny": "Tiny model"})
    first, second, *_ = draw("table1", inputs).axes
    title = "Measured on Test GPU: Tiny model\nA text, test, context 64 tokens, windows 0-1"
    assert first.get_title(loc="left") == title
    assert "other, test" in second.get_title(loc="left")
    assert len(solid(first)) == 1
    words = [text.get_text() for text in first.texts]
    assert {f"{value:.2f}" for value in synthetic.PPL.values()} <= set(words)
    assert "W16A16 (w16a16)" in words
    change = words.index("30.00") + 1
    assert words[change : change + 2] == ["+50.0%", "0.0%"]


def test_changed_settings_of_methods_are_named(paper):
    records = synthetic.accuracy()
    config = {"fmpq": {"end_loss": True}, "methods": {"atom-w4a4": {"end_loss": True}}}
    for record in records:
        record["provenance"] = record["provenance"] | {"config": config}
    first, *_ = draw("table1", FigureInputs(records, paper)).axes
    line = first.get_title(loc="left").splitlines()[-1]
    assert line == "settings end_loss: true in FMPQ, atom-w4a4"


def test_a_run_with_fewer_rows_says_so(paper):
    full, some = synthetic.accuracy(), synthetic.accuracy()[:2]
    some_rows = draw("table1", FigureInputs(some, paper, reference=full)).get_supxlabel()
    assert "This run measured 2 rows; 3 more" in some_rows.replace("\n", " ")
    all_rows = draw("table1", FigureInputs(full, paper, reference=some)).get_supxlabel()
    assert "This run measured" not in all_rows


def test_zero_shot_accuracy_shows_errors_and_what_is_left_of_16_bit(paper):
    first, second, *_ = draw("table2", FigureInputs(synthetic.zero_shot(), paper)).axes
    words = [text.get_text() for text in first.texts]
    assert "acc, %, zero-shot, the first 8 items of each" in first.get_title(loc="left")
    assert {"75.0 \u00b1 10.0", "50.0 \u00b1 10.0", "43.8 \u00b1 7.1"} <= set(words)
    assert any(word.startswith("70.0%, ") for word in words)
    assert "acc_norm" in second.get_title(loc="left")
    assert "87.5 \u00b1 10.0" in [text.get_text() for text in second.texts]


def test_a_row_that_was_not_scored_on_every_task_has_no_mean(paper):
    records = [r for r in synthetic.zero_shot() if r["case"]["task"] != "winogrande"]
    records += [r for r in synthetic.zero_shot() if r["backend"] == "w16a16"][-1:]
    first, *_ = draw("table2", FigureInputs(records, paper)).axes
    words = [text.get_text() for text in first.texts]
    assert {"75.0 \u00b1 10.0", "62.5 \u00b1 7.1"} <= set(words)  # 16 bit and its mean
    assert "50.0 \u00b1 10.0" in words
    assert not any(word.startswith("66.7%, ") for word in words)


def test_kv4_loss_is_shown_alone_and_on_top(paper):
    axes = draw("kv4_loss", FigureInputs(synthetic.accuracy(), paper)).axes[0]
    assert heights(solid(axes)) == [0.5, pytest.approx(1.2)]
    assert [t.get_text() for t in axes.texts] == ["+0.500\n(+2.50%)", "+1.200\n(+4.00%)"]


def test_kv4_variants_show_their_change_against_16_bit(paper):
    figure = draw("kv4_loss", FigureInputs(synthetic.kv_variants(), paper))
    axes = figure.axes[-1]
    assert [p.get_width() for p in solid(axes)] == heights_of(2.5, 10.0)
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["K channel x 64 tokens, V token", "K token"]
    assert axes.get_title(loc="left").startswith("What shares a scale, weights in 16 bit\ntiny\n")
    layers = [
        record
        for record in synthetic.kv_variants("layers")
        if record["case"]["kv"]["variant"] != "K token"
    ]
    layers[1]["case"]["kv"]["variant"] = "layer 0"
    assert heights(solid(draw("kv4_loss", FigureInputs(layers, paper)).axes[-1])) == heights_of(2.5)


def test_kv4_in_task_scores_is_a_difference_with_its_error(paper):
    records = synthetic.zero_shot()
    for record in records:
        record["backend"] = record["backend"].replace("fmpq-w4axkv4", "w16a16-kv4")
    table = draw("kv4_loss", FigureInputs(records, paper)).axes[1]
    words = [text.get_text() for text in table.texts]
    assert words[:2] == ["PIQA", "WinoGrande"]
    assert "-25.0 \u00b1 16.4" in words and "-12.5 \u00b1 12.5" in words


def test_precision_map_has_a_bar_for_each_layer(paper, statistics):
    figure = draw("precision_map", FigureInputs(synthetic.quantize(), paper, statistics))
    assert heights(solid(figure.axes[0])) == [18.0, 19.0, 20.0]
    assert figure.axes[0].get_ylabel() == "blocks in INT8, %"
    cells = [text.get_text() for text in figure.axes[3].texts]
    assert cells == ["1/3"] * 4


def test_fig4_shows_the_precision_of_every_block(paper, statistics):
    with arrays.opened(statistics) as opened:
        sample = opened.sample("model.layers.0.attn_in")
    before, after = fig4.before_and_after(sample)
    assert before == ["INT8", "INT8", "INT8"]
    assert after == ["INT4", "INT4", "INT8"]
    figure = draw("fig4", FigureInputs([], paper, statistics))
    colours = [p.get_facecolor() for p in figure.axes[1].patches]
    assert colours == [to_rgba(style.BLUE), to_rgba(style.BLUE), to_rgba(style.RED)]
    left, right = (axes.images[0].get_array() for axes in figure.axes[:2])
    assert left.shape == right.shape == (24, 384)
    assert np.isclose(left.max(), right.max())
    assert right[:, 256:300].min(axis=0).max() > right[:, :256].mean()


def test_fig3_keeps_the_largest_value_of_each_bin(paper, statistics):
    values = np.arange(10.0).reshape(1, 10)
    assert arrays.pooled(values, 1, 3).tolist() == [[2.0, 5.0, 9.0]]
    figure = draw("fig3", FigureInputs(synthetic.quantize(), paper, statistics))
    titles = {axes.get_title() for axes in figure.axes}
    assert titles == {f"model.layers.{i}.{x}" for i in (0, 1) for x in ("attn_in", "mlp_out")}
    assert "measured (Test GPU)" in legend(figure)
    assert "Measured on tiny, calibration text: text." in figure.get_supxlabel()


def test_natural_checkpoints_are_not_on_the_precision_map(paper):
    records = synthetic.quantize()
    for record in records:
        record["case"]["method"] = "natural"
    figure = draw("precision_map", FigureInputs(records, paper))
    assert [text.get_text() for text in figure.axes[0].texts] == [
        "not measured: no quantize record"
    ]


def test_representative_layers_show_each_input_once():
    names = [f"model.layers.{i}.{x}" for i in (0, 5, 9) for x in ("attn_in", "mlp_in")]
    assert arrays.representative(names, 2) == ["model.layers.0.attn_in", "model.layers.5.mlp_in"]
    assert arrays.representative([], 3) == []


def test_broken_statistics_are_one_clear_line(paper, tmp_path):
    path = tmp_path / "statistics.safetensors"
    with pytest.raises(UserError, match="run the quantize target again"):
        draw("fig3", FigureInputs([], paper, path))
    path.write_bytes(b"not a tensor file")
    with pytest.raises(UserError, match="run the quantize target again"):
        draw("fig3", FigureInputs([], paper, path))
