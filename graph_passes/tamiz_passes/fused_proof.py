"""Proves that an attention fused by another tool computes what tamiz.Attention computes.

The op's attributes and its constant tables say what to expect; the op itself, run by ONNX Runtime,
says whether it is so.
"""

from __future__ import annotations

import onnx_ir as ir

from tamiz_passes.attention_cases import CASES, case_of
from tamiz_passes.attention_proof import Parameters, Proof, longest_window
from tamiz_passes.probe import Case, integers_behind
from tamiz_passes.values import NotRunError, Refusal

#: GroupQueryAttention takes padding at the end of a prompt only, and several new tokens after a
#: past of one sequence only.
_UNPADDED = (
    case_of([[1] * 5] * 2, 5),
    case_of([[1] * 9], 3),
    case_of([[1] * 9] * 2, 1),
)


class FusedProof(Proof):
    """The parameters of an op; see `Proof`."""

    def parameters(self) -> Parameters:
        """Tries the windows that the op may have; the rest is in its attributes.

        Raises:
            Refusal: None of them gives what the op computes.
        """
        node = self.region.fused
        assert node is not None
        frequency, factor = self.rotary()
        scale = self.usual_scale(node.attributes.get_float("scale", 0.0))
        cap = node.attributes.get_float("softcap", 0.0)
        windows, longest = self.windows(node)
        failed = Refusal("no window fits")
        for window in windows:
            found = Parameters(
                self.heads,
                self.kv_heads,
                scale,
                factor,
                frequency,
                window,
                cap,
                counted=self.counts and frequency is not None,
            )
            try:
                for case in self.cases(node, longest):
                    self.check_case(found, case.counted() if self.counts else case)
            except Refusal as refusal:
                failed = refusal
            else:
                return found
        raise failed

    def check_case(self, parameters: Parameters, case: Case) -> None:
        """Checks the results of a case.

        Some graphs, such as the builder's of float16, run a prompt and single steps only: several
        tokens after a past mean nothing there.

        Raises:
            Refusal: They are not those of tamiz.Attention.
        """
        try:
            self.check_results(parameters, case)
        except NotRunError:
            if case.past == 0 or case.length == 1:
                raise

    def windows(self, node: ir.Node) -> tuple[list[int], int]:
        """Windows that it may have, the likeliest first, and the longest context to try."""
        inside = node.attributes.get_int("local_window_size", -1)
        masks = [value for value in node.inputs[3:6] if value is not None]
        numbers = {inside} if inside > 0 else integers_behind(masks, self.borders)
        longest = longest_window(numbers)
        near = {n + d for n in numbers if 1 < n < longest for d in (0, 1)}
        return [*([] if inside > 0 else [0]), *sorted(near)], longest

    def cases(self, node: ir.Node, longest: int) -> tuple[Case, ...]:
        """The inputs for which the op is defined, and one that shows a window."""
        usual = _UNPADDED if node.op_type == "GroupQueryAttention" else CASES
        return (*usual, case_of([[1] * longest], 1))
