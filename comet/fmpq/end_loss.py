# SPDX-License-Identifier: Apache-2.0
"""How much an error of each calibration token costs the model's loss.

GPTQ and the clip search keep the output error of a linear small, sum over tokens t of |E x_t|^2
with E the error of the weight, and count every token the same. To second order an output error
costs the loss L the square of g_t . E x_t, where g_t is dL / dy_t. With its square spread evenly
over the output channels that is |g_t|^2 |E x_t|^2, so that the second moment becomes the sum of
w_t x_t x_t^T with w_t proportional to |g_t|^2 (GuidedQuant, Kim et al., ICML 2025, section 3, with
one group of output channels, which the linears of an input share here). Only weights change; a
kernel sees nothing.
"""

from contextlib import ExitStack

import torch

from comet.models.families import InputGroup
from comet.models.folder import ModelFolder

# Times the mean: gradients of a few tokens are hundreds of times as large, and a second moment of
# those alone would rest on too few.
LARGEST = 8.0


def token_weights(
    folder: ModelFolder,
    windows: torch.Tensor,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> dict[str, torch.Tensor]:
    """Weights of the tokens of every linear input, by one backward pass over the windows.

    The whole model is in memory, and the activations of one window.

    Args:
        folder: the 16-bit model.
        windows: int64 [n, T], calibration tokens.
        device, dtype: where and in which type the model runs.

    Returns:
        fp32 [n * T] with mean 1, in the order of the windows, by ``layer.input`` as statistics are
        named (``comet.fmpq.plan.watch_layer``).
    """
    model, family = folder.load(dtype, device), folder.family
    model.requires_grad_(False)
    squares: dict[str, list[torch.Tensor]] = {}
    with ExitStack() as hooks:
        for index, layer in enumerate(family.layers_of(model)):
            for group in family.inputs:
                seen = squares[f"{family.layers}.{index}.{group.name}"] = []
                hooks.enter_context(_watched(layer, group, seen))
        for tokens in windows.to(device):
            _backward(model, tokens)
    # Of each window as many parts as the input has linears.
    return {
        name: _normalized(torch.stack(parts).unflatten(0, (len(windows), -1)).sum(dim=1))
        for name, parts in squares.items()
    }


def _watched(layer: torch.nn.Module, group: InputGroup, seen: list[torch.Tensor]) -> ExitStack:
    """Hooks that add |dL / dy|^2 of each token to ``seen``, once a linear of the group."""
    hooks = ExitStack()
    for name in group.linears:
        hook = layer.get_submodule(name).register_full_backward_hook(
            lambda _, __, given: seen.append(given[0].float().square().sum(dim=-1).flatten())
        )
        hooks.callback(hook.remove)
    return hooks


@torch.enable_grad()
def _backward(model: torch.nn.Module, tokens: torch.Tensor) -> None:
    """The loss of predicting each next token of one window, and its gradients."""
    embedded = model.get_input_embeddings()(tokens[None]).requires_grad_()
    logits = model(inputs_embeds=embedded, use_cache=False).logits[0, :-1]
    torch.nn.functional.cross_entropy(logits.float(), tokens[1:], reduction="sum").backward()


def _normalized(squares: torch.Tensor) -> torch.Tensor:
    """fp32 [tokens] of mean 1, on the CPU."""
    weights = squares.flatten().cpu()
    weights = weights.clamp(max=LARGEST * weights.mean())
    mean = weights.mean()
    return weights / mean if mean > 0 else torch.ones_like(weights)
