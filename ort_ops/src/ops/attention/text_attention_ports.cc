// What the op TextAttention expects of its inputs.
#include "ops/attention/text_attention_ports.h"

#include <string>

#include "base/shapes.h"

namespace tamiz {
namespace {

using In = TextAttentionInput;

void check_texts(const Tensor& begins, int64_t batch, int64_t tokens) {
  expect_rank("text_begins", begins, 1, "1 or tokens");
  if (begins.shape.dims[0] == 1) return;
  if (begins.shape.dims[0] != tokens || batch != 1) {
    throw Error("text_begins has " + std::to_string(begins.shape.dims[0]) +
                " elements, expected 1, or the tokens of a batch of one row");
  }
  if (!begins.data) throw Error("text_begins is computed, expected an input of the node");
  const auto* first = begins.as<int64_t>();
  for (int64_t t = 0; t < tokens; ++t) {
    if (first[t] == t || (t > 0 && first[t] == first[t - 1])) continue;
    throw Error("text_begins is " + std::to_string(first[t]) + " at token " + std::to_string(t) +
                ", expected " + std::to_string(t) + (t ? " or what the token before has" : ""));
  }
}

/// Checks c2p, p2c and their buckets.
void check_relative(Ports inputs, int64_t heads, int64_t dim) {
  const Tensor& buckets = inputs[In::buckets];
  if (!(inputs[In::c2p] || inputs[In::p2c]) || !buckets || inputs[In::distance_bias]) {
    throw Error("expected buckets with c2p or p2c, and no distance_bias beside them");
  }
  int64_t columns = 0;
  for (const size_t port : {In::c2p, In::p2c}) {
    const Tensor& table = inputs[port];
    if (!table) continue;
    if (table.shape.rank == 3) columns = columns ? columns : table.shape.dims[2];
    expect_shape(port == In::c2p ? "c2p" : "p2c", table, Shape{3, {heads, dim, columns}},
                 "num_heads, head size and columns");
  }
  expect_rank("buckets", buckets, 1, "2 reach + 1");
  const int64_t count = buckets.shape.dims[0];
  if (count % 2 == 0) {
    throw Error("buckets has " + std::to_string(count) + " elements, expected an odd number");
  }
  if (!buckets.data) throw Error("buckets is computed, expected an input of the node");
  for (int64_t i = 0; i < count; ++i) {
    const int64_t column = buckets.as<int64_t>()[i];
    if (column >= 0 && column < columns) continue;
    throw Error("buckets has " + std::to_string(column) + ", expected 0 to " +
                std::to_string(columns - 1));
  }
}

}  // namespace

void check_text_attention(Ports inputs, int64_t heads, int64_t kv_heads) {
  const Shape& q = inputs[In::q].shape;
  expect_rank("q", inputs[In::q], 3, "batch, tokens, num_heads * head size");
  if (q.dims[2] == 0 || q.dims[2] % heads) {
    throw Error("q has " + std::to_string(q.dims[2]) +
                " columns, expected a multiple of num_heads = " + std::to_string(heads));
  }
  const Shape k = {3, {q.dims[0], q.dims[1], q.dims[2] / heads * kv_heads}};
  expect_shape("k", inputs[In::k], k, "batch and tokens of q, kv_heads * head size");
  expect_shape("v", inputs[In::v], k, "the shape of k");
  if (inputs[In::attention_mask]) {
    expect_shape("attention_mask", inputs[In::attention_mask], Shape{2, {q.dims[0], q.dims[1]}},
                 "batch and tokens of q");
  }
  if (inputs[In::text_begins]) check_texts(inputs[In::text_begins], q.dims[0], q.dims[1]);
  if (inputs[In::inverse_frequency]) {
    expect_rank("inverse_frequency", inputs[In::inverse_frequency], 1,
                "half the rotated dimensions");
    if (2 * inputs[In::inverse_frequency].shape.dims[0] > q.dims[2] / heads) {
      throw Error(
          "inverse_frequency has " + std::to_string(inputs[In::inverse_frequency].shape.dims[0]) +
          " elements, expected at most half the head size " + std::to_string(q.dims[2] / heads));
    }
  }
  if (const Tensor& bias = inputs[In::distance_bias]) {
    expect_rank("distance_bias", bias, 2, "num_heads and 2 reach + 1");
    if (bias.shape.dims[0] != heads || bias.shape.dims[1] % 2 == 0) {
      throw Error("distance_bias has shape " + text(bias.shape) + ", expected [" +
                  std::to_string(heads) + ", an odd number]");
    }
  }
  if (inputs[In::c2p] || inputs[In::p2c] || inputs[In::buckets]) {
    check_relative(inputs, heads, q.dims[2] / heads);
  }
}

}  // namespace tamiz
