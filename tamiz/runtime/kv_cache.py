"""The KV cache of a sequence, in the two ways that a graph can keep one.

- shared: one buffer of fixed capacity is bound as past and as present, and the model appends in
  place; the length comes from attention_mask. Nothing is copied and almost nothing rebound.
- exact: past has exactly the tokens so far, and present is a new tensor one run longer. Works with
  every decoder graph of optimum's interface.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as Ids
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from tamiz.files.errors import TamizError
from tamiz.interface.switches import switch_input
from tamiz.runtime import large_pages
from tamiz.runtime.sequence import ROWS, Decoder, Logits, Sequence


class SharedSequence(Sequence):
    """A sequence in buffers of fixed capacity, appended in place."""

    def __init__(self, decoder: Decoder, capacity: int) -> None:
        """Allocates the buffers; untouched pages cost no memory.

        Args:
            decoder: The model.
            capacity: Tokens to make room for; doubled when they do not suffice.
        """
        super().__init__(decoder)
        self._token = np.zeros((1, 1), np.int64)
        self._position = np.zeros((1, 1), np.int64)
        self._keep = np.zeros(1, np.int64)
        self._next = np.zeros((1, 1, decoder.vocabulary), np.float32)
        self._next_row: Logits = self._next[0, 0]
        self._rows: Logits = self._next
        self._buffers = [state.zeros() for state in decoder.states]
        self._allocate(capacity)

    def _allocate(self, capacity: int) -> None:
        """Moves the cache into buffers of another capacity and binds them."""
        decoder, length = self._decoder, len(self.tokens)
        self._capacity = capacity
        self._mask = np.ones((1, capacity), np.int64)
        self._mask_address = self._mask.ctypes.data
        self._binding = decoder.session.io_binding()
        forms = ((state.shape(capacity), state.dtype) for state in decoder.states)
        old, self._buffers = self._buffers, large_pages.arrays(forms)
        for state, before, buffer in zip(decoder.states, old, self._buffers, strict=True):
            state.first(buffer, length)[:] = state.first(before, length)
            bind(self._binding.bind_input, state.past, buffer)
            bind(self._binding.bind_output, state.present, buffer)
        if decoder.can_keep:
            bind(self._binding.bind_input, "logits_to_keep", self._keep)
        self._bind_switches()
        self._bind_step()

    def switch_off(self, techniques: Collection[str]) -> None:
        """See `Sequence`."""
        super().switch_off(techniques)
        self._bind_switches()

    def _bind_switches(self) -> None:
        """Binds the switches that are set; one stays bound, as its value can change."""
        for name, off in self._switches.items():
            if off[0]:
                bind(self._binding.bind_input, switch_input(name), off)

    def _state(self, index: int) -> NDArray[Any]:
        return self._buffers[index]

    def _take(self, other: Sequence) -> None:
        length = len(other.tokens)
        for index, state in enumerate(self._decoder.states):
            state.first(self._buffers[index], length)[:] = state.first(other._state(index), length)

    def _cut(self, fixed: Ids[NDArray[Any]]) -> None:
        for index, value in zip(self._fixed, fixed, strict=False):
            self._buffers[index][:] = value

    def _bind_step(self) -> None:
        """Binds what a step of one token needs; `_step` then changes values and the mask only."""
        self._keep[0] = 1
        bind(self._binding.bind_input, "input_ids", self._token)
        if self._decoder.has_positions:
            bind(self._binding.bind_input, "position_ids", self._position)
        bind(self._binding.bind_output, "logits", self._next)

    def _bind_mask(self, length: int) -> None:
        """Sets the number of tokens after the run, which is the mask's length."""
        # Not `bind`: numpy takes 25 µs to return an address when the caches are cold.
        self._binding.bind_input(
            "attention_mask", "cpu", 0, np.int64, (1, length), self._mask_address
        )

    def _reserve(self, count: int) -> None:
        super()._reserve(count)
        needed = len(self.tokens) + count
        if needed > self._capacity:
            self._allocate(min(max(needed, 2 * self._capacity), self._decoder.limit))

    def _run_bound(self) -> None:
        try:
            self._decoder.session.run_with_iobinding(self._binding)
        except Exception as error:  # onnxruntime's exceptions share no base class
            reason = str(error).strip().splitlines()[0]
            raise TamizError(
                f"{self._decoder.path}: does not run with the shared KV cache that its"
                f" manifest promises: {reason}"
            ) from error

    def _step(self, token: int) -> Logits:
        length = len(self.tokens)
        self._token[0, 0] = token
        self._position[0, 0] = length
        self._bind_mask(length + 1)
        self._run_bound()
        return self._next_row

    def _buffer(self, rows: int) -> Logits:
        """Memory for the logits ``[1, rows, V]``; that of `ROWS` rows is used again."""
        shape = (1, rows, self._decoder.vocabulary)
        if rows > ROWS:
            return np.empty(shape, np.float32)
        if self._rows.shape[1] < rows:
            self._rows = np.empty((1, ROWS, self._decoder.vocabulary), np.float32)
        return self._rows[:, :rows]

    def _run(self, ids: NDArray[np.int64], every: bool) -> Logits:
        length, count = len(self.tokens), ids.shape[1]
        positions = np.arange(length, length + count)[None]
        bind(self._binding.bind_input, "input_ids", ids)
        if self._decoder.has_positions:
            bind(self._binding.bind_input, "position_ids", positions)
        self._bind_mask(length + count)
        logits = self._next
        if every or not self._decoder.can_keep:
            self._keep[0] = 0
            logits = self._buffer(count)
            bind(self._binding.bind_output, "logits", logits)
        self._run_bound()
        self._bind_step()
        rows: Logits = logits[0]
        return rows


class ExactSequence(Sequence):
    """A sequence whose cache is a new set of tensors after every run."""

    def __init__(self, decoder: Decoder) -> None:
        """Starts empty."""
        super().__init__(decoder)
        self._cache = [_value(state.zeros()) for state in decoder.states]

    def _state(self, index: int) -> NDArray[Any]:
        state: NDArray[Any] = self._cache[index].numpy()
        return state

    def _take(self, other: Sequence) -> None:
        self._cache = [_value(other._state(i).copy()) for i in range(len(self._decoder.states))]

    def _cut(self, fixed: Ids[NDArray[Any]]) -> None:
        values = dict(zip(self._fixed, fixed, strict=False))
        for index, state in enumerate(self._decoder.states):
            if index not in values:
                values[index] = state.first(self._state(index), len(self.tokens)).copy()
        self._cache = [_value(values[index]) for index in range(len(values))]

    def _step(self, token: int) -> Logits:
        last: Logits = self._run(np.array([[token]]), every=False)[-1]
        return last

    def _run(self, ids: NDArray[np.int64], every: bool) -> Logits:
        decoder, length, count = self._decoder, len(self.tokens), ids.shape[1]
        feeds = {state.past: part for state, part in zip(decoder.states, self._cache, strict=True)}
        feeds["input_ids"] = _value(ids)
        feeds["attention_mask"] = _value(np.ones((1, length + count), np.int64))
        if decoder.has_positions:
            feeds["position_ids"] = _value(np.arange(length, length + count)[None])
        if decoder.can_keep:
            feeds["logits_to_keep"] = _value(np.array([0 if every else 1]))
        feeds |= {switch_input(name): _value(off) for name, off in self._switches.items() if off[0]}
        presents = [state.present for state in decoder.states]
        *self._cache, logits = decoder.session.run_with_ort_values([*presents, "logits"], feeds)
        result: Logits = logits.numpy()[0].astype(np.float32, copy=False)
        return result


def _value(array: NDArray[np.generic]) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_numpy(array)


def bind(bind: Callable[..., None], name: str, array: NDArray[np.generic]) -> None:
    """Binds the memory of a C-contiguous array, which must outlive the runs."""
    bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
