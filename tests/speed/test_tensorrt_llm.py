# SPDX-License-Identifier: Apache-2.0
"""The file interface to TensorRT-LLM, with fake interpreters in its place."""

import ast
import json
import stat
import sys

import pytest
import torch

from comet.speed.backends import GemmShape, MeasuredElsewhere, Unavailable, tensorrt_llm

SHAPES = [GemmShape(m, 64, 256, 0.75) for m in (1, 16)]
DEVICE = torch.device("cpu")
ANSWER = {
    "format": 1,
    "device": "Test GPU",
    "versions": {"tensorrt_llm": "1.0", "torch": "2.7"},
    "results": [
        {"m": 1, "n": 64, "k": 256, "samples": [2.0, 3.0, 4.0]},
        {"m": 16, "n": 64, "k": 256, "error": "RuntimeError: no kernel"},
    ],
}


@pytest.fixture
def interpreter(monkeypatch, tmp_path):
    """Installs a program in the place of TensorRT-LLM's Python: body of a function of two paths."""
    monkeypatch.setattr(tensorrt_llm, "_measured", {})

    def install(body: str):
        program = tmp_path / "python-with-trtllm"
        lines = [f"#!{sys.executable}", "import json, sys", "request, response = sys.argv[2:]"]
        program.write_text("\n".join((*lines, body)))
        program.chmod(program.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("COMET_TRTLLM_PYTHON", str(program))
        return program

    return install


def answering(content) -> str:
    text = content if isinstance(content, str) else json.dumps(content)
    return f"open(response, 'w').write({text!r})"


def test_results_are_read_and_errors_told(interpreter, tmp_path):
    kept = tmp_path / "kept.json"
    interpreter(f"open({str(kept)!r}, 'w').write(open(request).read())\n{answering(ANSWER)}")
    tensorrt_llm.prepare("w8a8", SHAPES, seed=5)
    request = json.loads(kept.read_text())
    assert request["shapes"] == [{"m": 1, "n": 64, "k": 256}, {"m": 16, "n": 64, "k": 256}]
    assert (request["kind"], request["seed"], request["timer"]["replays"]) == ("w8a8", 5, 15)
    found = tensorrt_llm.w8a8(SHAPES[0], DEVICE)
    assert found.samples == [2.0, 3.0, 4.0]
    assert found.method["versions"]["tensorrt_llm"] == "1.0"
    with pytest.raises(Unavailable, match="RuntimeError: no kernel"):
        tensorrt_llm.w8a8(SHAPES[1], DEVICE)
    with pytest.raises(Unavailable, match="cannot be watched"):
        print(found.calls)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (answering("not JSON"), "answered nothing usable \\(JSONDecodeError"),
        ("pass", "answered nothing usable \\(FileNotFoundError"),
        (answering([1, 2]), "answered nothing usable \\(TypeError"),
        (answering(ANSWER | {"format": 2}), "format 2, wanted 1"),
        (answering(ANSWER | {"results": ANSWER["results"][:1]}), "no result for m, n, k = \\(16"),
        (
            answering(ANSWER | {"results": [ANSWER["results"][0] | {"samples": [-1.0]}]}),
            "they must be positive microseconds",
        ),
        (
            answering(ANSWER | {"results": [ANSWER["results"][0] | {"samples": ["fast"]}]}),
            "answered nothing usable \\(ValueError",
        ),
        ("sys.exit('No module named tensorrt_llm')", "ended with 1: No module named tensorrt_llm"),
    ],
)
def test_a_bad_answer_is_no_measurement(interpreter, body, message):
    interpreter(body)
    tensorrt_llm.prepare("w4a16", SHAPES, seed=0)
    for shape in SHAPES:
        with pytest.raises(Unavailable, match=message):
            tensorrt_llm.w4a16(shape, DEVICE)


def test_without_tensorrt_llm_the_hint_says_how_to_get_it(interpreter, monkeypatch):
    monkeypatch.delenv("COMET_TRTLLM_PYTHON", raising=False)
    tensorrt_llm.prepare("w4a16", SHAPES, seed=0)
    with pytest.raises(Unavailable, match="pip install tensorrt_llm.* and set COMET_TRTLLM_PYTHON"):
        tensorrt_llm.w4a16(SHAPES[0], DEVICE)
    monkeypatch.setenv("COMET_TRTLLM_PYTHON", "/nowhere/python")
    tensorrt_llm.prepare("w4a16", SHAPES, seed=0)
    with pytest.raises(Unavailable, match="COMET_TRTLLM_PYTHON is /nowhere/python, which is no"):
        tensorrt_llm.w4a16(SHAPES[0], DEVICE)


def test_a_slow_worker_is_given_up(interpreter, monkeypatch):
    monkeypatch.setattr(tensorrt_llm, "START_SECONDS", 0.2)
    monkeypatch.setattr(tensorrt_llm, "SECONDS_A_SHAPE", 0)
    interpreter("import time; time.sleep(20)")
    tensorrt_llm.prepare("w4a16", SHAPES, seed=0)
    with pytest.raises(Unavailable, match="did not answer in 0.2 s"):
        tensorrt_llm.w4a16(SHAPES[0], DEVICE)


def test_the_worker_stands_alone():
    """TensorRT-LLM's environment has no comet."""
    tree = ast.parse(tensorrt_llm.WORKER.read_text())
    imported = [
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    ]
    assert "tensorrt_llm" in imported
    assert not any(name.split(".")[0] == "comet" for name in imported)
    assert MeasuredElsewhere([1.0], {}).samples == [1.0]
