"""Checked access to the hyperparameters and tensors of one architecture in a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from tamiz_exporters.gguf_fields import ARCHITECTURE_KEYS, TOKENIZER_KEYS
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.source_fields import Field, Treatment, obeyed_fields
from tamiz_exporters.stored_tensor import StoredTensor, find_tensor


@dataclass(frozen=True)
class Hyperparameters:
    """The keys of a file that begin with its architecture.

    Attributes:
        file: The checked file.
        architecture: Value of `general.architecture`.
        keys: What becomes of those keys.
        tokenizer_keys: What becomes of keys of the tokenizer.
    """

    file: GgufFile
    architecture: str
    keys: Mapping[str, Field] = field(default_factory=lambda: ARCHITECTURE_KEYS)
    tokenizer_keys: Mapping[str, Field] = field(default_factory=lambda: TOKENIZER_KEYS)

    def positive(self, key: str, default: int | None = None) -> int:
        """A positive integer, perhaps listed for every layer.

        Args:
            key: Key without the architecture.
            default: Value where the key is absent; None makes the key required.

        Raises:
            TamizError: It is absent and required, not positive, or differs between layers.
        """
        listed = self.given(key)
        if isinstance(listed, np.ndarray):
            values = set(listed.tolist())
            if len(values) != 1 or not all(type(value) is int for value in values):
                self.reject(key, sorted(values), "one number in all layers")
            value = values.pop()
        else:
            value = self.file.get(self._name(key), int, default)
        if value <= 0:
            self.reject(key, value, "a positive number")
        return int(value)

    def whole(self, key: str) -> int:
        """A whole number; 0 where the key is absent. See `positive`.

        Raises:
            TamizError: It is negative or no whole number.
        """
        return 0 if self.file.get(self._name(key), int, 0) == 0 else self.positive(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number: the shortest decimal of the stored float32, so 1e-05.

        Args:
            key: Key without the architecture.
            default: Value where the key is absent; 0 is allowed only where this is 0. None makes
                the key required.

        Raises:
            TamizError: It is absent and required, or not positive and finite.
        """
        value = self.file.get(self._name(key), float, default)
        if not (np.isfinite(value) and (value > 0 or value == default == 0)):
            self.reject(key, value, "a positive number")
        return float(str(np.float32(value)))

    def flag(self, key: str) -> bool:
        """True or false; false where the key is absent.

        Raises:
            TamizError: The file holds another type.
        """
        return bool(self.file.get(self._name(key), bool, False))

    def text(self, key: str, default: str) -> str:
        """A string.

        Raises:
            TamizError: The file holds another type.
        """
        return str(self.file.get(self._name(key), str, default))

    def given(self, key: str) -> Any:
        """A value of any type; None where the key is absent."""
        return self.file.metadata.get(self._name(key))

    def reject(self, key: str, found: Any, expected: str) -> NoReturn:
        """Raises the TamizError that says what is wrong with a key."""
        self.file.fail(f"{self.architecture}.{key}", found, expected)

    def check(self) -> None:
        """Refuses keys that change results and are not obeyed; warns of unknown ones.

        Raises:
            TamizError: A key is refused.
        """
        tables = {f"{self.architecture}.": self.keys, "tokenizer.": self.tokenizer_keys}
        for prefix, table in tables.items():
            given = {
                key.removeprefix(prefix): value
                for key, value in self.file.metadata.items()
                if key.startswith(prefix)
            }

            def reject(key: str, found: Any, expected: str, prefix: str = prefix) -> None:
                self.file.fail(f"{prefix}{key}", found, expected)

            obeyed_fields(self.file.path, self.architecture, given, table, reject, prefix)

    def _name(self, key: str) -> str:
        assert self.keys[key].treatment is Treatment.OBEYED, key
        return f"{self.architecture}.{key}"

    def tensor(self, name: str, shape: tuple[int | None, ...]) -> StoredTensor:
        """A tensor of the file.

        Args:
            name: Its name.
            shape: Expected shape; None for any size.

        Raises:
            TamizError: It is missing, has another shape, or a type that cannot be read.
        """
        return find_tensor(self.file, name, shape)
