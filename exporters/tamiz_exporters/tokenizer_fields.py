"""What becomes of each field of a ``tokenizer_config.json``."""

from __future__ import annotations

from tamiz_exporters.source_fields import Field, no_effect, obeyed

#: Fields, by their names in transformers.
TOKENIZER_FIELDS: dict[str, Field] = {
    "bos_token": obeyed(),
    "eos_token": obeyed("one of the ends"),
    "unk_token": obeyed("a control token, for chat templates"),
    "pad_token": obeyed("a control token"),
    "sep_token": obeyed("a control token"),
    "cls_token": obeyed("a control token"),
    "mask_token": obeyed("a control token"),
    "additional_special_tokens": obeyed("control tokens"),
    "extra_special_tokens": obeyed("for chat templates"),
    "add_bos_token": obeyed("where it is missing, what tokenizer.json puts before a text"),
    "chat_template": obeyed("chat_template.jinja comes first"),
    "added_tokens_decoder": obeyed("where tokenizer.json is made; else that file has them"),
    "add_prefix_space": obeyed("where tokenizer.json is made; else that file has it"),
    "do_lower_case": obeyed("where tokenizer.json is made from vocab.txt; else that file has it"),
    "strip_accents": obeyed("where tokenizer.json is made from vocab.txt; else that file has it"),
    "tokenize_chinese_chars": obeyed("where tokenizer.json is made from vocab.txt"),
    "tokenizer_class": obeyed("where tokenizer.json is made: how text is split"),
    "model_max_length": obeyed(
        "longest text of an encoder where sentence_bert_config.json has none"
    ),
    **no_effect("a decoder's answer is open at its end", "add_eos_token"),
    **no_effect("never done: a text is what its tokens say", "clean_up_tokenization_spaces"),
    **no_effect(
        "tokenizer.json says it", "legacy", "sp_model_kwargs", "spaces_between_special_tokens"
    ),
    **no_effect("tokenizer.json says it", "split_special_tokens", "from_slow", "remove_space"),
    **no_effect("tokenizer.json says it", "keep_accents", "do_basic_tokenize", "never_split"),
    **no_effect("tokenizer.json says it", "trim_offsets", "add_special_tokens", "local_files_only"),
    **no_effect("runs are padded and cut by tamiz", "padding_side", "truncation_side", "padding"),
    **no_effect("runs are padded and cut by tamiz", "truncation", "max_length", "stride"),
    **no_effect("runs are padded and cut by tamiz", "pad_to_multiple_of", "pad_token_type_id"),
    **no_effect("runs are padded and cut by tamiz", "truncation_strategy", "max_len"),
    **no_effect("the graph's inputs say it", "model_input_names"),
    **no_effect(
        "arguments of transformers, not of the model",
        *("_json_padding", "_json_truncation", "_spm_precompiled_charsmap", "chat_control_tokens"),
        *("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",),
        *("files_loaded", "fix_mistral_regex", "gguf_file", "merges", "post_processor"),
        *("response_template", "tokenizer", "tokenizer_object", "tokenizer_padding"),
        *("tokenizer_truncation", "unk_id", "vocab"),
    ),
    **no_effect("templates have no system prompt of their own", "use_default_system_prompt"),
    **no_effect(
        "how transformers stores or names the tokenizer",
        *("auto_map", "name_or_path", "processor_class", "special_tokens_map_file"),
        *("tokenizer_file", "vocab_file", "merges_file", "backend", "is_local", "errors"),
        *("init_inputs", "use_fast", "transformers_version", "device_map", "extra_ids"),
        *("model_specific_special_tokens", "verbose", "is_encoder_decoder", "response_schema"),
    ),
    **no_effect(
        "of other kinds of models",
        *("image_token", "boi_token", "eoi_token", "audio_token", "video_token", "tgt_lang"),
        *("src_lang", "language", "task", "return_token_type_ids", "predict_timestamps"),
    ),
}
