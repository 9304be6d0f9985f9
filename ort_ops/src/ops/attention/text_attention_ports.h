// The ports of the op TextAttention, and what is expected of them.
#pragma once

#include "engine/op_spec.h"

namespace tamiz {

#define TEXT_ATTENTION_INPUTS(PORT)                                                                \
  PORT(q, float32, required, "[batch, tokens, num_heads * head size]")                             \
  PORT(k, float32, required, "[batch, tokens, kv_heads * head size]")                              \
  PORT(v, float32, required, "the shape of k")                                                     \
  PORT(attention_mask, int64, optional,                                                            \
       "[batch, tokens]: 0 hides a key; omitted, or with texts: none is hidden")                   \
  PORT(                                                                                            \
      text_begins, int64, optional,                                                                \
      "[1] or [tokens], an input of the graph: the texts of a batch of one row. Element t is the " \
      "first token of the text of token t. One element: as if omitted, each row is a text")        \
  PORT(inverse_frequency, float32, optional,                                                       \
       "[rotated dimensions / 2]: as for Attention, with positions that begin at 0 in each text")  \
  PORT(distance_bias, float32, optional,                                                           \
       "[num_heads, 2 reach + 1]: element reach + d is added to the scores of query i and key "    \
       "i + d; beyond the reach its first or last one")                                            \
  PORT(c2p, float32, optional,                                                                     \
       "[num_heads, head size, columns]: content to position; scale * q_i c2p[:, b(j - i)] is "    \
       "added to the score of query i and key j")                                                  \
  PORT(p2c, float32, optional,                                                                     \
       "[num_heads, head size, columns]: position to content; likewise scale * k_j p2c[:, "        \
       "b(j - i)]")                                                                                \
  PORT(buckets, int64, optional,                                                                   \
       "[2 reach + 1], an input of the graph: element reach + d is the column b(d) of c2p and "    \
       "p2c; beyond the reach the first or last one")
#define TEXT_ATTENTION_OUTPUTS(PORT) PORT(y, float32, required, "the shape of q")
TAMIZ_PORTS(TextAttentionInput, TEXT_ATTENTION_INPUTS);
TAMIZ_PORTS(TextAttentionOutput, TEXT_ATTENTION_OUTPUTS);

/// Throws an Error that says what an input has, and what is expected.
void check_text_attention(Ports inputs, int64_t heads, int64_t kv_heads);

}  // namespace tamiz
