"""What the tests of a plugin need: the contract of a technique as tests, and a tiny model.

Needs pytest (``pip install "tamiz[testing]"``). See docs/guides/write-a-technique.md.
"""

from tamiz.testing.conformance import TechniqueTests
from tamiz.testing.tiny_llama import export_tiny_llama, write_tiny_llama
from tamiz.testing.trial import Case

__all__ = ["Case", "TechniqueTests", "export_tiny_llama", "write_tiny_llama"]
