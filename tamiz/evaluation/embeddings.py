"""How close the embeddings of an encoder are to those of another, e.g. of the dense model.

cos_i     = ⟨e_i, ê_i⟩                          e, ê: of text i by both models, of length 1
nearest_i = argmax over j ≠ i of ⟨e_i, e_j⟩
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamiz.evaluation.windows import cut
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.files.text_file import read_text
from tamiz.runtime.embedding.encoder import Encoder
from tamiz.runtime.embedding.settings import most_tokens
from tamiz.runtime.embedding.text_session import Float32

#: Texts of a run.
_BATCH = 8

Texts = NDArray[np.int64]


def read_texts(path: Path, bundle: Bundle, count: int | None, length: int, most: int) -> Texts:
    """The first texts of a file, all of one length, between the tokens that begin and end a text.

    Args:
        path: The file.
        bundle: Has the tokenizer.
        count: How many; None for as many as the file holds, but at most `most`.
        length: Tokens of a text.
        most: See `count`.

    Raises:
        TamizError: The file cannot be read or tokenised, or is too short; names it. Or the model
            reads no texts of that length.
    """
    from tamiz.runtime.text.tokenizer import Tokenizer

    check_length(bundle, length)
    content, tokenizer = read_text(path), Tokenizer(bundle)
    first, last = tokenizer.ends()
    inner = length - len(first) - len(last)
    if inner < 1:
        raise TamizError(
            f"{bundle.path}: found texts of {length} tokens, expected a model that reads more than "
            f"the {length - inner} that begin and end a text"
        )
    try:
        ids = tokenizer.encode(content, bos=False)
        pieces = cut(ids, count or max(1, min(most, len(ids) // inner)), inner)
    except TamizError as error:
        raise TamizError(f"{path}: {error}") from error
    return np.array([[*first, *piece, *last] for piece in pieces], np.int64)


def check_length(bundle: Bundle, length: int) -> None:
    """Refuses texts that are longer than those that an encoder reads.

    Args:
        bundle: The encoder.
        length: Tokens of a text.

    Raises:
        TamizError: The texts are too long.
    """
    limit = most_tokens(bundle)
    if limit is not None and length > limit:
        raise TamizError(
            f"{bundle.path}: found --window {length}, expected at most {limit} tokens "
            f"(max_position_embeddings of config.json); try --window {limit}"
        )


def compare(
    built: Encoder,
    dense: Encoder,
    texts: Texts,
    at_once: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Both models on the same texts; the JSON of `tamiz eval`.

    Args:
        built: The model.
        dense: What to compare with.
        texts: Token ids ``[texts, tokens]``.
        at_once: Runs side by side; for models of one thread each.
        progress: Takes the number of texts read so far.

    Raises:
        TamizError: The widths differ.
    """
    if built.width != dense.width:
        raise TamizError(
            f"{built.bundle.path}: has embeddings of {built.width} numbers, but "
            f"{dense.bundle.path} of {dense.width}, so they cannot be compared"
        )

    def both(ids: Texts) -> Float32:
        return np.stack([dense.embeddings(ids), built.embeddings(ids)])

    return {**closeness(*read(both, texts, at_once, progress)), "windows": len(texts)}


def read(
    run: Callable[[Texts], Float32],
    texts: Texts,
    at_once: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> Float32:
    """Embeddings of texts, some texts a run.

    Args:
        run: Gives embeddings ``[…, texts, width]`` of token ids ``[texts, tokens]``.
        texts: The token ids of all texts.
        at_once: Runs side by side; for a model of one thread.
        progress: Takes the number of texts read so far.
    """
    found: list[Float32] = []
    batches = [texts[at : at + _BATCH] for at in range(0, len(texts), _BATCH)]
    with ThreadPoolExecutor(at_once) as pool:
        for part in pool.map(run, batches):
            found.append(part)
            progress(min(len(texts), len(found) * _BATCH))
    return np.concatenate(found, axis=-2)


def cosines(dense: Float32, built: Float32) -> NDArray[np.float64]:
    """The cosine of each pair of embeddings ``[texts, width]`` of length 1."""
    products: NDArray[np.float64] = np.einsum("tw,tw->t", dense, built, dtype=np.float64)
    return products


def closeness(dense: Float32, built: Float32) -> dict[str, float]:
    """How alike embeddings are, and whether they agree on which text is nearest.

    Args:
        dense: ``[texts, width]``, each of length 1.
        built: Likewise, of the same texts.

    Returns:
        ``cos_mean``, the 5 % quantile ``cos_p05``, and with more than two texts ``same_nearest``,
        the fraction of texts whose nearest other text is the same.
    """
    of_texts = cosines(dense, built)
    found = {"cos_mean": float(of_texts.mean()), "cos_p05": float(np.quantile(of_texts, 0.05))}
    if len(dense) > 2:
        found["same_nearest"] = float((nearest(dense) == nearest(built)).mean())
    return found


def nearest(embeddings: Float32) -> NDArray[np.intp]:
    """The nearest other text of each."""
    alike = embeddings @ embeddings.T
    np.fill_diagonal(alike, -np.inf)
    place: NDArray[np.intp] = alike.argmax(axis=1)
    return place
