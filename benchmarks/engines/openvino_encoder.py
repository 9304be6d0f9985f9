"""OpenVINO as a peer of encoders: its default precision, and int8 by NNCF (``nncf.quantize``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tamiz.evaluation.embeddings import Texts
from tamiz.runtime.embedding.text_session import padded, padding_of

if TYPE_CHECKING:
    from tamiz.runtime.embedding.encoder import Encoder, Float32

#: Texts that NNCF reads to choose scales.
CALIBRATED = 128
#: Distributions whose versions are stored.
DISTRIBUTIONS = ("openvino", "nncf")


class OpenVinoEncoder:
    """An encoder in OpenVINO, asked for one answer at a time (its hint ``LATENCY``)."""

    def __init__(self, folder: Path, like: Encoder, threads: int) -> None:
        """Compiles a model.

        Args:
            folder: Has ``openvino_model.xml``.
            like: The same model in ONNX Runtime: its pooling is applied here, too.
            threads: Number of threads.
        """
        import openvino

        options = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
        }
        core = openvino.Core()
        model = core.compile_model(folder / "openvino_model.xml", "CPU", options)
        self._request = model.create_infer_request()
        self._inputs = [each.get_any_name() for each in model.inputs]
        self._modules, self._padding = like.modules.directions(), padding_of(like.bundle)

    def embeddings(self, rows: Texts) -> Float32:
        """Embeddings of texts of one length, each scaled to length 1: ``[texts, width]``."""
        return self._run(rows, np.ones_like(rows))

    def encode(self, rows: Sequence[Sequence[int]]) -> Float32:
        """Embeddings of texts of any lengths, each scaled to length 1: ``[texts, width]``."""
        return self._run(*padded(rows, self._padding))

    def _run(self, ids: Texts, mask: Texts) -> Float32:
        self._request.infer(feeds(self._inputs, ids, mask), share_inputs=True)
        hidden: Float32 = self._request.get_output_tensor(0).data
        found: Float32 = self._modules(hidden, mask)
        return found


def feeds(names: Sequence[str], ids: Texts, mask: Texts) -> dict[str, Texts]:
    """What a model takes, of what there is."""
    zeros = np.zeros_like(ids)
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": zeros}
    return {name: given[name] for name in names}


def models(reference: Path, work: Path, texts: Texts) -> dict[str, Path]:
    """Folders of the reference in OpenVINO, by the name of the precision.

    Args:
        reference: A dense bundle of standard ONNX operators.
        work: Keeps the models.
        texts: Token ids of texts that NNCF reads.
    """
    import openvino

    default, quantized = work / "openvino", work / "openvino-int8"
    if not default.exists():
        model = openvino.convert_model(reference / "model.onnx")
        openvino.save_model(model, default / "openvino_model.xml", compress_to_fp16=False)
    if not quantized.exists():
        import nncf

        model = openvino.Core().read_model(default / "openvino_model.xml")
        names = [each.get_any_name() for each in model.inputs]
        rows = [row[np.newaxis] for row in texts]
        data = nncf.Dataset([feeds(names, row, np.ones_like(row)) for row in rows])
        done = nncf.quantize(
            model, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=CALIBRATED
        )
        openvino.save_model(done, quantized / "openvino_model.xml", compress_to_fp16=False)
    return {"OpenVINO, its default": default, "OpenVINO int8 by NNCF": quantized}
