"""Faults that bug reports of neighbouring projects and peers' test suites showed, and their tests.

Each kind of fault has a letter, each fault a number. The right values are those of the library that
a test names.
"""

from __future__ import annotations

#: Fault → what it was, and the tests that have the right value.
FAULTS: dict[str, tuple[str, str]] = {
    # A: silently wrong
    "A1": (
        "a pooling that is not the mean was read as the mean",
        "runtime/embedding/test_modules.py::test_both_spellings_of_a_pooling "
        "runtime/embedding/test_pooling.py::test_a_mode_gives_what_sentence_transformers_gives",
    ),
    "A2": (
        "rotary factors without a type, and by an old key, were ignored",
        "exporters/test_reference_logits.py::test_logits_equal_those_of_llama_cpp",
    ),
    "A3": (
        "white space behind the control tokens of Phi 3 became tokens",
        "exporters/test_gguf_vocabulary.py"
        "::test_control_tokens_of_phi_3_take_the_white_space_after_them",
    ),
    "A4": (
        "templates found tools, documents and special tokens undefined",
        "runtime/text/test_chat.py::test_templates_have_the_environment_of_transformers",
    ),
    "A5": (
        "hidden columns took the place of tokens in a window, also under a filter of keys",
        "ops/test_attention.py::test_a_window_counts_visible_keys "
        "ops/test_sketch.py::test_positions_count_and_not_columns "
        "plugins/window_attention/test_window_attention.py::test_masked_columns_are_no_positions "
        "interactions/test_masked_columns.py::test_masked_columns_are_no_positions",
    ),
    "A6": (
        "an activation that is not the usual one of its architecture was computed as the usual one",
        "exporters/test_reference_logits.py::test_logits_equal_those_of_transformers",
    ),
    # B: answers that never end, or break off
    "B1": (
        "ends of a turn by name were no ends",
        "runtime/text/test_ends.py::test_a_token_that_ends_a_turn_by_its_name_ends_an_answer "
        "exporters/test_gguf_vocabulary.py::test_ends_are_those_of_llama_cpp",
    ),
    "B2": (
        "one of three files that name ends was read",
        "exporters/test_ends.py::test_all_ends_count "
        "runtime/text/test_ends.py::test_an_end_that_any_file_names_ends_an_answer",
    ),
    "B3": (
        "a character that is cut in two ended an answer",
        "runtime/text/test_byte_tokens.py::test_a_character_that_is_cut_in_two_ends_no_answer "
        "runtime/text/test_byte_tokens.py::test_a_stream_of_bytes_never_fails",
    ),
    "B4": (
        "ids beyond the tokenizer were drawn",
        "runtime/text/test_ends.py::test_a_token_without_text_is_never_drawn",
    ),
    "B5": (
        "a stop string that names a control token never matched",
        "runtime/text/test_ends.py::test_a_stop_string_may_name_a_control_token",
    ),
    # C: refused though it should work
    "C1": (
        "templates with blocks of generation",
        "runtime/text/test_chat.py::test_templates_have_the_environment_of_transformers",
    ),
    "C2": (
        "arguments of tojson",
        "runtime/text/test_chat.py::test_templates_have_the_environment_of_transformers",
    ),
    "C3": (
        "graphs with ops that only ONNX Runtime has in ONNX's domain",
        "exporters/test_onnx.py::test_ops_that_only_onnxruntime_has_in_onnxs_domain_are_read",
    ),
    "C4": (
        "folders with few files, companions above them, weights without their prefix",
        "exporters/test_folders.py::test_vocabulary_and_merges_alone "
        "exporters/test_folders.py::test_companions_lie_above_the_folder_onnx "
        "exporters/test_folders.py::test_weights_without_their_prefix",
    ),
    "C5": (
        "another template came before the file chat_template.jinja",
        "exporters/test_folders.py::test_chat_template_jinja_comes_before_tokenizer_config_json",
    ),
    "C6": (
        "names of pre-tokenizers",
        "exporters/test_pre_tokenizers.py::test_ids_equal_those_of_llama_cpp "
        "exporters/test_pre_tokenizers.py::test_all_names_have_expected_ids",
    ),
    "C7": (
        "a pre-tokenizer without a name, in silence",
        "exporters/test_pre_tokenizers.py::test_a_missing_pre_tokenizer_is_a_warning",
    ),
    "C8": (
        "one text at two ids",
        "exporters/test_gguf_vocabulary.py::test_one_text_at_two_ids",
    ),
    "C9": (
        "decoders in float16",
        "runtime/test_float16.py::test_a_decoder_in_float16_runs",
    ),
    "C10": (
        "contexts beyond the original one",
        "exporters/test_safetensors.py::test_yarn_stretches_its_original_context "
        "exporters/test_safetensors.py::test_a_longrope_reaches_beyond_its_original_context",
    ),
    "C11": (
        "more tokens than the context leaves, and a full chat",
        "cli/test_generation_options.py"
        "::test_more_tokens_than_the_context_leaves_are_what_it_leaves "
        "cli/test_generation_options.py::test_a_full_chat_drops_the_oldest_turns_and_says_so",
    ),
    "C12": (
        "byte order marks and line breaks of Windows were read as text",
        "cli/test_generation_options.py::test_byte_order_marks_and_line_breaks_are_not_read",
    ),
    # D: missing switches
    "D": (
        "switches of sampling and of templates",
        "cli/test_generation_options.py::test_options_of_sampling_act "
        "cli/test_generation_options.py::test_templates_get_system_variables_and_tools",
    ),
    # E: exits, promises, privacy
    "E1": (
        "connections that nobody asked for",
        "cli/test_no_network.py::test_commands_and_their_children_make_no_connection",
    ),
    "E2": (
        "the version of ONNX Runtime that reads a model",
        "files/test_onnx_versions.py::test_the_oldest_release_that_reads_a_model_is_in_the_manifest",
    ),
    "E3": (
        "an input that no run can give",
        "exporters/test_onnx.py::test_a_decoder_that_reads_an_encoder_keeps_its_inputs",
    ),
    "E4": (
        "a technique that was applied nowhere ended like a success",
        "building/write/test_self_check.py::test_a_technique_that_is_applied_nowhere_is_told",
    ),
    "E5": (
        "a closed standard output",
        "cli/test_generation_options.py::test_a_closed_stdout_costs_one_sentence",
    ),
    "E6": (
        "messages whose content is a list, None or missing",
        "runtime/text/test_chat.py"
        "::test_parts_of_a_content_are_joined_unless_the_template_reads_them "
        "runtime/text/test_chat.py::test_a_message_without_text_is_refused",
    ),
    "E7": (
        "a configuration that names no architecture",
        "exporters/test_folders.py::test_architectures_may_be_null",
    ),
    "E8": (
        "a test, and builds, that depended on the bits of BLAS",
        "ops/test_format_feedback.py::test_a_factor_of_few_samples_carries_what_its_matrix_does "
        "building/test_same_bytes.py::test_a_build_within_limits_decides_the_same_everywhere",
    ),
    "E9": (
        "one disturbed moment decided whether a technique pays",
        "building/search/test_what_pays.py::test_one_disturbed_moment_does_not_decide "
        "building/search/test_what_pays.py::test_what_pays",
    ),
    "E10": (
        "an error of one input frightened and said nothing",
        "building/write/test_self_check.py"
        "::test_the_summary_of_a_lossy_build_shows_no_error_of_one_input",
    ),
    # F: graphs that others wrote
    "F0": (
        "a constant of one orientation stood for the other one",
        "api/test_shared_weights.py::test_products_that_share_a_weight",
    ),
    "F1": (
        "an output disappeared",
        "passes/test_foreign_graphs.py::test_an_output_that_is_read_by_an_identity_keeps_its_name "
        "passes/test_foreign_graphs.py::test_names_and_order_of_outputs_stay",
    ),
    "F2": (
        "a norm of unknown width was recognised",
        "passes/test_foreign_graphs.py::test_a_norm_of_unknown_width_is_refused",
    ),
    "F3": (
        "SwiGLU of shapes that differ",
        "passes/test_foreign_graphs.py::test_swiglu_needs_equal_shapes",
    ),
    "F4": (
        "a norm of unknown type became one of float32",
        "passes/test_foreign_graphs.py::test_a_norm_in_float16_is_refused",
    ),
    "F5": (
        "a bias of one element",
        "plugins/block_quant/test_block_quant_build.py::test_gemm_and_matmul_with_bias_in_any_graph",
    ),
    "F6": (
        "small tensors only",
        "building/write/test_self_check.py::test_small_tensors_only",
    ),
    "F7": (
        "folding wrote nodes of newer opsets",
        "passes/test_foreign_graphs.py::test_sequences_of_constants_stay_at_their_opset "
        "passes/test_foreign_graphs.py"
        "::test_constants_are_folded_by_onnxruntime_at_the_opset_of_the_model",
    ),
    "F8": (
        "equal draws became one",
        "passes/test_foreign_graphs.py::test_equal_draws_stay_two",
    ),
    "F9": (
        "the self-check accepted wrong outputs and refused valid models",
        "building/write/test_self_check.py"
        "::test_a_site_that_multiplies_with_the_wrong_weight_fails_the_build "
        "building/write/test_self_check.py::test_inputs_of_every_type_are_made_up "
        "building/write/test_self_check.py::test_a_build_without_a_valid_input_is_not_checked",
    ),
    "F10": (
        "caches with a symbolic head size",
        "exporters/test_onnx.py::test_sizes_of_caches_come_from_the_config",
    ),
    "F11": (
        "weights that other tools quantised had no note",
        "passes/test_sites.py::test_a_weight_that_another_tool_quantised_is_noted",
    ),
    "F12": (
        "shapes that are unknown were called different",
        "passes/test_foreign_graphs.py::test_shapes_that_are_not_known_are_called_so",
    ),
    # G: hostile input
    "G1": (
        "prompts of any length",
        "runtime/text/test_chat.py::test_a_prompt_has_a_longest_length",
    ),
    "G2": (
        "a fit under the name of another was resumed",
        "building/decide/test_whole_model.py::test_a_fit_under_the_name_of_another_is_made_again",
    ),
    "G3": (
        "calibrations of types that NumPy has not",
        "calibration/test_calibration.py::test_types_that_numpy_lacks_cost_one_sentence",
    ),
    "G4": (
        "weights of strings, graphs without outputs, opsets of the future",
        "exporters/test_onnx.py::test_tensors_of_strings_are_refused "
        "exporters/test_onnx.py::test_a_graph_without_outputs_is_refused "
        "exporters/test_onnx.py::test_an_opset_of_the_future_is_refused",
    ),
    # A bare session loads it: ONNX Runtime asks no custom op, see docs/stability.md.
    "G5": (
        "a newer domain was loaded",
        "runtime/test_opset.py::test_a_newer_domain_is_refused",
    ),
    "G6": (
        "a path that goes back through a folder that is not there",
        "files/test_bundle.py::test_writing_through_a_path_that_goes_back",
    ),
    "G7": (
        "errors that named a file of the work that is gone, or no field",
        "files/test_bundle.py::test_writing_without_space_names_the_bundle "
        "exporters/test_onnx.py::test_a_place_of_external_data_that_is_no_number_is_named "
        "exporters/test_onnx.py::test_impossible_dimensions_are_refused",
    ),
    "G8": (
        "contexts beyond any memory",
        "cli/test_odd_values.py::test_a_context_beyond_any_memory_is_refused",
    ),
    "G9": (
        "frontiers of any size",
        "cli/test_odd_values.py::test_a_frontier_has_a_largest_number_of_points",
    ),
    "G10": (
        "limits that are no finite numbers",
        "cli/test_odd_values.py::test_a_limit_is_a_finite_number",
    ),
    "G11": (
        "a member that is removed while its answer is read",
        "runtime/batching/test_batch.py::test_the_answer_of_a_removed_member_ends",
    ),
    "G12": (
        "weights that are cut while they are read",
        "building/test_build.py::test_weights_that_are_cut_off_while_they_are_read_cost_one_sentence",
    ),
    "G13": (
        "values longer than a file name",
        "cli/test_odd_values.py::test_a_value_longer_than_a_file_name_names_the_option",
    ),
    "G14": (
        "batches larger than the memory",
        "runtime/batching/test_batch.py::test_a_batch_larger_than_the_memory_is_refused",
    ),
    "G15": (
        "a plugin that ends the program",
        "test_plugins.py::test_a_plugin_that_ends_the_program_is_skipped",
    ),
}  # fmt: skip
