# SPDX-License-Identifier: Apache-2.0
"""The command line that ``comet serve`` gives to vLLM."""

import json

import pytest

from comet.cli import main
from comet.errors import UserError
from comet.integrations.serve import serve_command


@pytest.fixture
def folder(tmp_path):
    def write(architecture="LlamaForCausalLM", method="fmpq", **more):
        config = {"architectures": [architecture], "quantization_config": {"quant_method": method}}
        (tmp_path / "config.json").write_text(json.dumps(config | more))
        return tmp_path

    return write


def test_kv4_needs_its_backend_and_the_number_of_requests(folder):
    command, environment, said = serve_command(folder(), 64, False, ["--port", "1"])
    assert command[:2] == ["vllm", "serve"]
    assert command[3:] == ["--max-num-seqs", "64", "--attention-backend", "CUSTOM", "--port", "1"]
    assert (environment, said) == ({}, [])


def test_qwen2_needs_the_second_model_runner(folder):
    _, environment, _ = serve_command(folder("Qwen2ForCausalLM"), 64, False, [])
    assert environment == {"VLLM_USE_V2_MODEL_RUNNER": "1"}


def test_a_sliding_window_keeps_16_bit_and_says_so(folder):
    window = folder("MistralForCausalLM", sliding_window=4096)
    command, _, said = serve_command(window, 64, False, [])
    assert "CUSTOM" not in command
    assert "sliding window" in said[0]
    # Qwen2 configurations name a window that is not used.
    unused = folder("Qwen2ForCausalLM", sliding_window=4096, use_sliding_window=False)
    assert "CUSTOM" in serve_command(unused, 64, False, [])[0]
    assert "CUSTOM" not in serve_command(folder(), 64, True, [])[0]


def test_what_is_no_checkpoint_is_one_line(folder, tmp_path, capsys):
    with pytest.raises(UserError, match="is no FMPQ checkpoint; make one with comet quantize"):
        serve_command(folder(method="awq"), 64, False, [])
    assert main(["serve", str(tmp_path / "nowhere")]) == 1
    assert "config.json cannot be read" in capsys.readouterr().err


def test_the_command_can_be_printed(folder, capsys):
    assert main(["serve", "--print", str(folder("Qwen2ForCausalLM"))]) == 0
    line = capsys.readouterr().out
    assert line.startswith("VLLM_USE_V2_MODEL_RUNNER=1 vllm serve ")
    assert "--attention-backend CUSTOM" in line
