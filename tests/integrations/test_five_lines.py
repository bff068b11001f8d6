# SPDX-License-Identifier: Apache-2.0
"""The five lines of docs/serving.md, run as they stand there."""

import random
import re
from pathlib import Path

from tiny_models import tiny_config, write_model, write_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from comet.integrations.linear import FMPQLinear

PAGE = Path(__file__).resolve().parents[2] / "docs" / "serving.md"


def test_the_five_lines_quantize_and_generate(tmp_path, monkeypatch):
    block = re.search(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)[1]
    lines = [line for line in block.splitlines() if line.strip()]
    assert len(lines) == 5
    sizes = {"hidden_size": 160, "intermediate_size": 384, "max_position_embeddings": 1024}
    write_model(tmp_path / "model", tiny_config("llama", **sizes))
    write_tokenizer(tmp_path / "model")
    draw = random.Random(0)
    text = "".join(chr(draw.randrange(33, 127)) for _ in range(13 * 1024))
    monkeypatch.chdir(tmp_path)
    names = {
        "AutoModelForCausalLM": AutoModelForCausalLM,
        "AutoTokenizer": AutoTokenizer,
        "name": str(tmp_path / "model"),
        "texts": [text],
        "prompt": "some words",
    }
    exec(block, names)
    assert names["tokens"].shape[1] > 10
    assert sum(isinstance(m, FMPQLinear) for m in names["model"].modules()) == 21
    assert (tmp_path / "model-w4ax" / "config.json").is_file()
