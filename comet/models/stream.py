# SPDX-License-Identifier: Apache-2.0
"""Walking a model layer by layer, with the weights of one decoder layer in memory at a time."""

import contextlib
from collections.abc import Callable, Iterator

import torch
from tqdm import tqdm

from comet.errors import UserError
from comet.models.folder import ModelFolder

Run = Callable[..., None]


class LayerStream:
    """Token windows on their way through the decoder layers of a model on disk.

    The model is built without memory for its weights. The embedding is loaded, used and freed;
    then each layer is loaded when its turn comes and freed before the next one is. Besides one
    layer, memory holds the hidden states of all windows, once.

    ::

        stream = LayerStream(folder, input_ids)
        for index, layer, run in stream:
            run()  # hooks on `layer` see every window; the outputs are dropped
            ...  # change the layer's weights in place, or replace its linears
            stream.advance()  # runs again; the outputs become the next layer's inputs

    A loop body that does not call ``advance`` gets it called when the next layer is due.
    ``run(advance=True)`` is ``advance()``: one pass instead of two where the layer stays as it is.

    Args:
        folder: the model.
        input_ids: int64 [n, T], n windows of T tokens, without padding.
        device: where layers run and hidden states are kept.
        dtype: of the weights and the hidden states.
        progress: show a bar with an estimate on stderr; default: only when it is a terminal.

    Attributes:
        hidden: [n, T, hidden size]; the inputs of the current layer, and after the last one its
            outputs, before the model's final norm. Overwritten in place by ``advance``.
        layer_count: number of decoder layers.
        largest_layer: bytes of the weights of the largest one in ``dtype``.

    Raises:
        UserError: a tensor is missing; a token is outside the vocabulary; while iterating: a layer
            gives a value that is not finite.
    """

    def __init__(
        self,
        folder: ModelFolder,
        input_ids: torch.Tensor,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        progress: bool | None = None,
    ) -> None:
        if input_ids.ndim != 2 or 0 in input_ids.shape:
            raise ValueError(f"input_ids has shape {list(input_ids.shape)}, expected [n, T]")
        if not 0 <= input_ids.min() <= input_ids.max() < folder.config.vocab_size:
            raise UserError(
                f"{folder.path}: token {input_ids.max()} is outside its vocabulary of "
                f"{folder.config.vocab_size}; use this model's own tokenizer"
            )
        self.device, self.dtype = torch.device(device), dtype
        self._folder = folder
        self._progress = progress
        model = folder.meta_model()
        self._layers = list(folder.family.layers_of(model))
        self.layer_count = len(self._layers)
        self.largest_layer = dtype.itemsize * max(
            sum(parameter.numel() for parameter in layer.parameters()) for layer in self._layers
        )
        self._current: torch.nn.Module | None = None
        self._index = -1
        self._advanced = True
        self._embed(model, input_ids)

    @torch.no_grad()
    def _embed(self, model: torch.nn.Module, input_ids: torch.Tensor) -> None:
        """Run what comes before the first layer; keep its outputs and each layer's arguments."""
        catchers = [_Catcher(last=False) for _ in self._layers]
        catchers[-1].last = True
        model.set_submodule(self._folder.family.layers, torch.nn.ModuleList(catchers))
        for name in self._folder.family.before_layers:
            if (module := _submodule(model, name)) is not None:
                self._load(module, name)
        _rebuild_computed_buffers(model, self.device)
        shape = (*input_ids.shape, self._folder.config.hidden_size)
        self.hidden = torch.empty(shape, dtype=self.dtype, device=self.device)
        for window, tokens in enumerate(input_ids):
            with contextlib.suppress(_LastLayerReached):
                model(tokens[None].to(self.device), use_cache=False)
            self.hidden[window] = catchers[0].inputs[0]
        # Windows have one length and no padding, so masks and positions are those of any window.
        self._arguments = [catcher.arguments for catcher in catchers]

    def _load(self, module: torch.nn.Module, name: str) -> None:
        keys = list(module.state_dict())
        stored = self._folder.tensors((f"{name}.{key}" for key in keys), self.device, self.dtype)
        weights = {key: stored[f"{name}.{key}"] for key in keys}
        module.load_state_dict(weights, strict=True, assign=True)
        module.requires_grad_(False)

    def __iter__(self) -> Iterator[tuple[int, torch.nn.Module, Run]]:
        """Yield (index, layer with its weights, run) for each decoder layer, once."""
        if self._index >= 0:
            raise RuntimeError("a LayerStream can be walked once; make another one")
        disable = None if self._progress is None else not self._progress
        with tqdm(total=self.layer_count, desc="layers", unit="layer", disable=disable) as bar:
            for index in range(self.layer_count):
                self._index, self._current = index, self._layers[index]
                self._load(self._current, f"{self._folder.family.layers}.{index}")
                self._advanced = False
                yield index, self._current, self._run
                if not self._advanced:
                    self.advance()
                # The caller's loop still names this layer while the next one is loaded.
                self._current.to("meta")
                self._current = self._layers[index] = None
                bar.update()

    def advance(self) -> None:
        """Run the current layer; its outputs become the inputs of the next."""
        self._run(advance=True)

    def forward(self, layer: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        """[n, T, hidden size] through ``layer`` with the current layer's other arguments.

        Gradients flow; the walk is left as it is.
        """
        output = layer(hidden, **self._arguments[self._index])
        return output[0] if isinstance(output, tuple) else output

    @torch.no_grad()
    def _run(self, layer: torch.nn.Module | None = None, advance: bool = False) -> None:
        """Push the windows through ``layer``, default the current one, one at a time.

        Args:
            layer: a module to call in place of the current layer, with the same arguments.
            advance: keep the outputs as the next layer's inputs; once a layer.
        """
        layer = self._current if layer is None else layer
        if layer is None or (advance and self._advanced):
            raise RuntimeError("run works inside the loop only, advance once a layer")
        for window in range(len(self.hidden)):
            output = self.forward(layer, self.hidden[window : window + 1])
            if not torch.isfinite(output).all():
                raise UserError(
                    f"{self._folder.path}: layer {self._index} gives a value that is not finite "
                    f"for window {window}; check the weights, or use float32 or bfloat16"
                )
            if advance:
                self.hidden[window] = output[0]
        self._advanced = self._advanced or advance


class _LastLayerReached(Exception):
    pass


class _Catcher(torch.nn.Module):
    """Stands for a decoder layer and keeps what the model passes to it."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.last = last

    def forward(self, hidden_states: torch.Tensor, **arguments) -> torch.Tensor:
        self.inputs, self.arguments = hidden_states, arguments
        if self.last:
            raise _LastLayerReached
        return hidden_states


def _submodule(model: torch.nn.Module, name: str) -> torch.nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def _rebuild_computed_buffers(model: torch.nn.Module, device: torch.device) -> None:
    """Make the rotary embedding's frequencies anew: they are computed, not stored."""
    for name, module in list(model.named_modules()):
        if module._non_persistent_buffers_set:
            model.set_submodule(name, type(module)(config=model.config).to(device))
