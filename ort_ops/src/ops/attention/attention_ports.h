// The ports of the op Attention: their numbers and their declarations.
#pragma once

#include "base/switches.h"
#include "engine/op_spec.h"

namespace tamiz {

struct CacheShape;

#define ATTENTION_INPUTS(PORT)                                                                     \
  PORT(q, float32, required, "[batch, sequence, num_heads * head size]")                           \
  PORT(k, float32, optional,                                                                       \
       "[batch, sequence, kv_heads * head size]; omitted, as v then: past_key and past_value are " \
       "presents of another Attention of the same run, which hold all keys. Nothing is stored, "   \
       "and there are no presents")                                                                \
  PORT(v, float32, optional,                                                                       \
       "[batch, sequence, kv_heads * head size]; omitted beside k: the value of a key is the key " \
       "as it is stored, rotated, and there is neither past_value nor present_value")              \
  PORT(past_key, float32, required,                                                                \
       "[batch, kv_heads, past or capacity, head size]; head size / 4 + 1 where cache_bits is 8")  \
  PORT(past_value, float32, optional, "the shape of past_key; omitted: the values are the keys")   \
  PORT(attention_mask, int64, required, "[batch, keys]: 0 hides a key")                            \
  PORT(position_ids, int64, required, "[batch, sequence]: the rotary positions")                   \
  PORT(inverse_frequency, float32, optional,                                                       \
       "[rotated dimensions / 2]: element i and i + rotated / 2 turn by position * frequency, in " \
       "float32; omitted: no rotary embedding")                                                    \
  PORT(past_sketch, float32, optional,                                                             \
       "[batch, kv_heads, past or capacity, words]: bits of the keys, 32 a float, and their "      \
       "size; with past_event four bits of an element; float32 because ONNX Runtime supports no "  \
       "other "                                                                                    \
       "type of a Fused output")                                                                   \
  PORT(                                                                                            \
      key_mean, float32, optional,                                                                 \
      "[kv_heads, head size]: subtracted from keys before they are sketched, and before they are " \
      "rounded to 8 bits, unless there is a softcap or a head_sink")                               \
  PORT(past_event, float32, optional,                                                              \
       "[batch, 2 + num_heads * head size], zeros at the start: decode steps attend to the keys "  \
       "that weigh by past_sketch, the others have the mean value they had last")                  \
  PORT(without_window, int64, optional, TAMIZ_SWITCH_DOC ": the window is plain_window then")      \
  PORT(without_choice, int64, optional,                                                            \
       TAMIZ_SWITCH_DOC                                                                            \
       ": all keys that the window shows are attended to then, and past_sketch grows as before")   \
  PORT(sequences, int64, optional,                                                                 \
       "[segments, 2 + pages], an input of the graph: tokens of several sequences in one row of "  \
       "the batch. A segment has its keys before the call, its tokens, which stand side by side, " \
       "and the pages of 64 rows of the cache that hold its keys in their order. -1 tokens: one, " \
       "which is a decode step; tokens of other segments attend to all keys that the window "      \
       "shows. The cache is appended in place, attention_mask is not read, and there is no "       \
       "past_event. No segments: as if omitted")                                                   \
  PORT(key_scale, float32, optional,                                                               \
       "[kv_heads, head size], powers of two, where cache_bits is 8: keys are divided by it "      \
       "before "                                                                                   \
       "they are rounded, and queries multiplied")                                                 \
  PORT(                                                                                            \
      head_sink, float32, optional,                                                                \
      "[num_heads], a score of each query head that joins the sum of its softmax and has no "      \
      "value: y = sum_j exp(s_j) v_j / (sum_j exp(s_j) + exp(sink)). There is no past_event then") \
  PORT(query_weight, float32, optional,                                                            \
       "[head size], what rotated queries are multiplied by, elementwise: of norms behind the "    \
       "rotation the product of both weights, as the rest of such a norm is that of q and of k")   \
  PORT(                                                                                            \
      head_slope, float32, optional,                                                               \
      "[num_heads]: of query head h, head_slope[h] * (j - i) is added to the score of key j and "  \
      "the query at key i, behind a softcap (ALiBi). There is neither past_sketch nor past_event " \
      "then")

#define ATTENTION_OUTPUTS(PORT)                                                             \
  PORT(y, float32, required, "[batch, sequence, num_heads * head size]")                    \
  PORT(present_key, float32, optional,                                                      \
       "[batch, kv_heads, keys or capacity, head size]; as past_key where cache_bits is 8") \
  PORT(present_value, float32, optional, "the shape of present_key")                        \
  PORT(present_sketch, float32, optional,                                                   \
       "[batch, kv_heads, keys or capacity, words]; no words without past_sketch")          \
  PORT(present_event, float32, optional, "the shape of past_event; may be its memory")

TAMIZ_PORTS(AttentionInput, ATTENTION_INPUTS);
TAMIZ_PORTS(AttentionOutput, ATTENTION_OUTPUTS);

/// Checks the constants of heads and the rotary frequencies, each of which may be missing. Throws
/// Error.
void check_attention(const CacheShape& shape, Ports inputs);

/// Whether a call appends keys to the cache; otherwise another attention of the run has done it.
inline bool stores(Ports inputs) { return static_cast<bool>(inputs[AttentionInput::k]); }

/// Whether values are rows of their own; otherwise the keys, as they are stored, are the values.
inline bool has_values(Ports inputs) {
  return static_cast<bool>(inputs[AttentionInput::past_value]);
}

}  // namespace tamiz
