"""Names of tokens that end an answer, as llama.cpp knows them (`special_eog_ids`).

Models name their ends in one file or another, and chat models often name only the end of a
document, not that of a turn.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Names of tokens that end a turn, a document, or a file within a document.
END_NAMES = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
    }
)
#: An end where the vocabulary calls it a control token. In those of Gemma and Qwen it is a tag of
#: HTML, at which llama.cpp ends, too.
END_OR_TAG = "</s>"
#: Where both groups have an end, this one ends a message, not the turn.
MESSAGE_END = "<|end|>"
_CALLS, _RETURNS = {"<|call|>", "<|calls|>"}, {"<|return|>", "<|flush|>"}


def ends_of_turns(ends: Mapping[str, int]) -> dict[str, int]:
    """The tokens that end a turn, of those that are ends by their names.

    Args:
        ends: Ids of a vocabulary's tokens by name.
    """
    inner = ends.keys() & _CALLS and ends.keys() & _RETURNS
    return {name: token for name, token in ends.items() if not (inner and name == MESSAGE_END)}
