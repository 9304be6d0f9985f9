"""What becomes of each field of a ``generation_config.json``: obeyed, refused, or without effect.

The tables are read by `tamiz.runtime.recommended`, by the page of the reference, and by a test that
compares them with transformers' class.
"""

from __future__ import annotations

from typing import Any

#: Fields that are obeyed, and how far.
OBEYED: dict[str, str] = {
    "do_sample": "without it the likeliest token is taken",
    "temperature": "with do_sample",
    "top_k": "with do_sample; 50 where it is missing, as in transformers",
    "top_p": "with do_sample",
    "min_p": "with do_sample",
    "repetition_penalty": "counts the whole text, with its prompt",
    "repeat_last_n": "tamiz's own, from GGUF: the tokens that repetition_penalty counts",
    "suppress_tokens": "are never drawn",
    "bad_words_ids": "words of one token are never drawn; others are refused",
    "eos_token_id": "one of the ends, always",
    "stop_strings": "end an answer, always",
}
#: Fields that change answers and have no counterpart, with the values that change nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
    "begin_suppress_tokens": (),
    "constraints": (),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "mirostat": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0,),
    "sampler_sequence": (),
    "sequence_bias": (),
    "token_healing": (False,),
    "top_h": (),
    "typical_p": (1,),
    "watermarking_config": (),
    "xtc_probability": (0,),
}
_LENGTH = "the length of an answer is --max-new-tokens"
_BEAMS = "of beams only"
_OUTPUT = "what transformers returns beside the text"
_SPEED = "how transformers runs the model; answers stay"
_DRAFTS = "how transformers guesses ahead; tamiz has --speculate"
_OTHER = "of other kinds of models"
#: Fields that change no answer.
NO_EFFECT: dict[str, str] = {
    **dict.fromkeys(("max_length", "max_new_tokens", "max_time"), _LENGTH),
    **dict.fromkeys(("early_stopping", "length_penalty", "num_beam_groups"), _BEAMS),
    **dict.fromkeys(("renormalize_logits", "low_memory"), _BEAMS),
    **dict.fromkeys(("output_attentions", "output_hidden_states", "output_logits"), _OUTPUT),
    **dict.fromkeys(("output_scores", "return_dict_in_generate"), _OUTPUT),
    **dict.fromkeys(("cache_config", "cache_implementation", "compile_config"), _SPEED),
    **dict.fromkeys(("continuous_batching_config", "disable_compile", "max_cache_len"), _SPEED),
    **dict.fromkeys(("prefill_chunk_size", "use_cache", "return_legacy_cache"), _SPEED),
    **dict.fromkeys(("assistant_confidence_threshold", "assistant_early_exit"), _DRAFTS),
    **dict.fromkeys(("assistant_ensemble_weight", "assistant_lookbehind"), _DRAFTS),
    **dict.fromkeys(("is_assistant", "max_matching_ngram_size", "num_assistant_tokens"), _DRAFTS),
    **dict.fromkeys(("num_assistant_tokens_schedule", "prompt_lookup_num_tokens"), _DRAFTS),
    **dict.fromkeys(("speculation_type", "target_lookbehind", "use_mtp"), _DRAFTS),
    **dict.fromkeys(("decoder_start_token_id", "is_encoder_decoder"), _OTHER),
    **dict.fromkeys(("bos_token_id", "pad_token_id"), "the tokenizer's settings name them"),
    "remove_invalid_values": "a model that gives NaN is refused",
    **dict.fromkeys(
        ("_from_model_config", "_commit_hash", "transformers_version"), "notes of transformers"
    ),
}
