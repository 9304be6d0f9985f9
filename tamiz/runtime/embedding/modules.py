"""The modules that make an embedding of hidden states, as ``modules.json`` of sentence-transformers
lists them: a pooling, then products and normalisations in their order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError, did_you_mean
from tamiz.files.text_file import read_text
from tamiz.runtime.embedding.pooling import MODES, Floats, Mask, Pooling

MODULES = "modules.json"
#: Where the pooling lies in bundles without a list of modules.
_POOLING = "1_Pooling/config.json"
_OWN = "sentence_transformers."
_WEIGHTS = "model.safetensors"


class Layer(Protocol):
    """A module behind the pooling."""

    def __call__(self, x: Floats) -> Floats:
        """Of ``[texts, K]`` makes ``[texts, N]``."""

    def back(self, x: Floats, gradient: Floats) -> Floats:
        """The gradient at `x`, of the one at the result."""


@dataclass(frozen=True)
class Normalize(Layer):
    """Scales every vector to length 1."""

    def __call__(self, x: Floats) -> Floats:
        """See `Layer`."""
        unit: Floats = x / _lengths(x)
        return unit

    def back(self, x: Floats, gradient: Floats) -> Floats:
        """See `Layer`."""
        lengths = _lengths(x)
        along = np.vecdot(x, gradient)[:, None]
        found: Floats = (gradient - x * along / lengths**2) / lengths
        return found


class Activation(NamedTuple):
    """An activation function.

    Attributes:
        function: The function.
        slope: Its derivative.
    """

    function: Callable[[Floats], Floats]
    slope: Callable[[Floats], Floats]


def _sigmoid(x: Floats) -> Floats:
    found: Floats = 0.5 * (1 + np.tanh(0.5 * x))
    return found


def _normal(x: Floats) -> Floats:
    """How likely a normal number is less than x."""
    found: Floats = 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / 2**0.5))
    return found.astype(x.dtype)


def _gelu_slope(x: Floats) -> Floats:
    density: Floats = np.exp(-0.5 * np.square(x)) / (2 * np.pi) ** 0.5
    return _normal(x) + x * density


_ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": Activation(lambda x: x, np.ones_like),
    "torch.nn.modules.activation.Tanh": Activation(np.tanh, lambda x: 1 - np.square(np.tanh(x))),
    "torch.nn.modules.activation.ReLU": Activation(
        lambda x: np.maximum(x, 0), lambda x: (x > 0).astype(x.dtype)
    ),
    "torch.nn.modules.activation.Sigmoid": Activation(
        _sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x)
    ),
    "torch.nn.modules.activation.GELU": Activation(lambda x: x * _normal(x), _gelu_slope),
}


@dataclass(frozen=True)
class Dense(Layer):
    """y = activation(x Wᵀ + b), and x or x Rᵀ added where there is a residual.

    Attributes:
        weight: ``[N, K]``.
        bias: ``[N]``.
        activation: The activation function.
        residual: R ``[N, K]``; the identity for x itself, None for no residual.
    """

    weight: Floats
    bias: Floats
    activation: Activation
    residual: Floats | None = None

    def __call__(self, x: Floats) -> Floats:
        """See `Layer`."""
        y = self.activation.function(x @ self.weight.T + self.bias)
        return y if self.residual is None else y + x @ self.residual.T

    def back(self, x: Floats, gradient: Floats) -> Floats:
        """See `Layer`."""
        slope = self.activation.slope(x @ self.weight.T + self.bias)
        found: Floats = (gradient * slope) @ self.weight
        return found if self.residual is None else found + gradient @ self.residual


@dataclass(frozen=True)
class Modules:
    """What makes an embedding of hidden states.

    Attributes:
        pooling: The pooling.
        layers: What follows it.
    """

    pooling: Pooling
    layers: tuple[Layer, ...] = ()

    def __call__(self, hidden: Floats, mask: Mask, prompt: int = 0) -> Floats:
        """Embeddings ``[texts, width]``; see `Pooling`."""
        x = self.pooling(hidden, mask, prompt)
        for layer in self.layers:
            x = layer(x)
        return x

    def back(self, hidden: Floats, mask: Mask, gradient: Callable[[Floats], Floats]) -> Floats:
        """The gradient at the hidden states.

        Args:
            hidden: See `Pooling`.
            mask: See `Pooling`.
            gradient: The gradient at the embeddings, of the embeddings.
        """
        inputs = [self.pooling(hidden, mask)]
        for layer in self.layers:
            inputs.append(layer(inputs[-1]))
        g = gradient(inputs[-1])
        for layer, x in zip(reversed(self.layers), reversed(inputs[:-1]), strict=True):
            g = layer.back(x, g)
        return self.pooling.back(hidden, mask, g)

    def directions(self) -> Modules:
        """The same, but for the length of the embeddings, which is 1."""
        layers = list(self.layers)
        while layers and isinstance(layers[-1], Normalize):
            layers.pop()
        return Modules(self.pooling, (*layers, Normalize()))

    def width(self, hidden: int) -> int:
        """Numbers of an embedding, where a hidden state has `hidden`."""
        dense = [layer for layer in self.layers if isinstance(layer, Dense)]
        return len(dense[-1].weight) if dense else hidden * len(self.pooling.modes)


def read_modules(bundle: Bundle, hidden: int) -> Modules:
    """The modules of an encoder; a mean, where the bundle does not say.

    Args:
        bundle: The bundle.
        hidden: Numbers of a hidden state.

    Raises:
        TamizError: A file is not of the expected form, or a module is not supported.
    """
    if MODULES not in bundle.manifest.files:
        pooled = _POOLING in bundle.manifest.files
        return Modules(_pooling(bundle, _POOLING, hidden) if pooled else Pooling())
    path, listed = bundle.path / MODULES, _listed(bundle)
    pooling: Pooling | None = None
    layers: list[Layer] = []
    width = hidden
    for module in listed:
        kind, folder = str(module.get("type")), str(module.get("path"))
        name = kind.rpartition(".")[2] if kind.startswith(_OWN) else kind
        config = f"{folder}/config.json"
        if name == "Transformer":
            continue
        if name == "Pooling" and pooling is None:
            pooling = _pooling(bundle, config, hidden)
            width = hidden * len(pooling.modes)
        elif name == "Normalize" and pooling is not None:
            _check_names(bundle, config)
            layers.append(Normalize())
        elif name == "Dense" and pooling is not None:
            dense = _dense(bundle, folder, width)
            layers.append(dense)
            width = len(dense.weight)
        else:
            raise TamizError(
                f"{path}: found the module {kind} at {folder!r}, expected Transformer, one Pooling,"
                " then Dense and Normalize of sentence-transformers"
            )
    return Modules(pooling or Pooling(), tuple(layers))


def _listed(bundle: Bundle) -> list[dict[str, Any]]:
    """The modules, in their order."""
    path = bundle.file(MODULES)
    try:
        listed = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise TamizError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(listed, list) or not all(isinstance(module, dict) for module in listed):
        raise TamizError(f"{path}: expected a list of modules, each with a type and a path")
    return listed


def _pooling(bundle: Bundle, name: str, hidden: int) -> Pooling:
    """A pooling, in the spelling of today or in the older one with a key a mode."""
    config, path = bundle.json(name), bundle.path / name
    for key in ("embedding_dimension", "word_embedding_dimension"):
        if config.get(key, hidden) != hidden:
            raise TamizError(f"{path}: {key} is {config[key]!r}, expected {hidden}")
    given = config.get("pooling_mode")
    if given is None:
        given = [mode for key, mode in MODES.items() if config.get(key) is True] or ["mean"]
    modes = (given,) if isinstance(given, str) else given
    if not isinstance(modes, (list, tuple)) or not modes:
        raise TamizError(f"{path}: pooling_mode is {given!r}, expected a mode or a list of modes")
    known = set(MODES.values())
    for mode in modes:
        if mode not in known:
            raise TamizError(
                f"{path}: pooling_mode is {mode!r}, expected some of {', '.join(sorted(known))}"
                f"{did_you_mean(str(mode), known)}"
            )
    for key, value in config.items():
        if key.startswith("pooling_mode_") and key not in MODES and value:
            raise TamizError(f"{path}: found {key}, expected some of {', '.join(MODES)}")
    return Pooling(tuple(modes), config.get("include_prompt", True) is not False)


def _dense(bundle: Bundle, folder: str, width: int) -> Dense:
    path = bundle.path / folder
    config = bundle.json(f"{folder}/config.json")
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    if name not in _ACTIVATIONS:
        raise TamizError(
            f"{path / 'config.json'}: activation_function is {name!r}, expected one of"
            f" {', '.join(_ACTIVATIONS)}"
        )
    _check_names(bundle, f"{folder}/config.json")
    tensors = _tensors(bundle, f"{folder}/{_WEIGHTS}")
    weight = tensors.get("linear.weight")
    if weight is None or weight.ndim != 2 or weight.shape[1] != width:
        shape = None if weight is None else weight.shape
        raise TamizError(f"{path / _WEIGHTS}: linear.weight is {shape}, expected [N, {width}]")
    bias = tensors.get("linear.bias", np.zeros(len(weight), np.float32))
    if bias.shape != (len(weight),):
        raise TamizError(
            f"{path / _WEIGHTS}: linear.bias is {bias.shape}, expected [{len(weight)}]"
        )
    residual = None
    if config.get("use_residual"):
        residual = tensors.get("residual.weight", np.eye(width, dtype=np.float32))
        if residual.shape != weight.shape:
            raise TamizError(
                f"{path / _WEIGHTS}: residual.weight is {residual.shape}, expected {weight.shape}"
            )
    return Dense(weight, bias, _ACTIVATIONS[name], residual)


def _check_names(bundle: Bundle, name: str) -> None:
    """Refuses a module that works on something else than the embedding of a text."""
    if name not in bundle.manifest.files:  # older versions write none for Normalize
        return
    config = bundle.json(name)
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, "sentence_embedding"):
            raise TamizError(
                f"{bundle.path / name}: {key} is {config[key]!r}, expected 'sentence_embedding'"
            )


def _tensors(bundle: Bundle, name: str) -> Mapping[str, Floats]:
    """The tensors of a file, in float32."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if name not in bundle.manifest.files:
        raise TamizError(
            f"{bundle.path}: has no {name}, which modules.json needs; save the model anew with"
            " sentence-transformers, which writes safetensors"
        )
    try:
        found: dict[str, Any] = load_file(bundle.file(name))
    except (SafetensorError, KeyError, TypeError) as error:
        raise TamizError(f"{bundle.path / name}: not readable as safetensors: {error}") from error
    return {key: tensor.astype(np.float32) for key, tensor in found.items()}


def _lengths(x: Floats) -> Floats:
    lengths: Floats = np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    return lengths
