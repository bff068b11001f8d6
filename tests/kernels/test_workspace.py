# SPDX-License-Identifier: Apache-2.0
"""Who shares the memory of partial sums and flags: launches of a stream, graphs if told so."""

import types

import pytest
import torch

from comet.kernels import workspace

CPU = torch.device("cpu")


@pytest.fixture
def of(monkeypatch):
    """``workspace_of`` in a program where ``of(capture, stream)`` says what is captured."""
    monkeypatch.setattr(workspace, "_workspaces", {})
    monkeypatch.setattr(workspace, "_of_graphs", {})

    def found(capture: int, stream: int = 7) -> workspace.Workspace:
        def identify(_stream, answer):
            answer._obj.value = capture

        library = types.SimpleNamespace(function=lambda *_: identify, check=lambda *_: None)
        monkeypatch.setattr(workspace, "current_stream", lambda device: stream)
        return workspace.workspace_of(library, CPU)

    return found


def test_a_stream_and_each_graph_have_their_own(of):
    eager = of(0)
    assert of(0) is eager
    assert of(0, stream=8) is not eager
    assert of(1) is not eager
    assert of(2) is not of(1)


def test_graphs_share_one_once_told(of):
    before = of(1)
    workspace.share_between_graphs(CPU)
    shared = of(2)
    workspace.share_between_graphs(CPU)
    assert of(3, stream=8) is shared
    assert shared is not before
    assert of(0) is not shared


def test_flags_of_graphs_are_zero_before_the_first_capture(of):
    workspace.share_between_graphs(CPU)
    shared = of(1)
    address = shared.flags(4096)
    assert address == shared.flags(workspace.GRAPH_FLAGS)
    with pytest.raises(RuntimeError, match=f"{workspace.GRAPH_FLAGS + 1} flags wanted"):
        shared.flags(workspace.GRAPH_FLAGS + 1)


def test_a_larger_request_keeps_what_was_given(of):
    eager = of(0)
    first = eager.sums(64)
    assert eager.sums(32) == first
    assert eager.sums(1 << 20) != first
    assert any(kept.data_ptr() == first for kept in eager._kept)
