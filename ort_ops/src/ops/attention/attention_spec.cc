// The declaration of Attention.
#include "ops/attention/attention.h"
#include "ops/attention/event_attention.h"
#include "ops/attention/key_filter.h"

namespace tamiz {
namespace {

std::vector<AttributeSpec> attributes() {
  std::vector<AttributeSpec> all = {
      {"num_heads", AttributeSpec::Kind::integer, true, 0, "query heads"},
      {"kv_heads", AttributeSpec::Kind::integer, true, 0, "key/value heads"},
      {"scale", AttributeSpec::Kind::real, false, 0, "of the scores; 0: 1 / sqrt(head size)"},
      {"rotary_scale", AttributeSpec::Kind::real, false, 1, "factor of cosine and sine"},
      {"cache_bits", AttributeSpec::Kind::integer, false, 32,
       "of an element of a key or a value in the cache: 32, float32; 8, round(x / s) with s = max "
       "|x| / 127, four in a float's place, and then s"}};
  for (const AttributeSpec& attribute : key_filter_attributes()) all.push_back(attribute);
  for (const AttributeSpec& attribute : event_attention_attributes()) all.push_back(attribute);
  return all;
}

std::vector<MetricSpec> metrics() {
  std::vector<MetricSpec> all = key_filter_metrics();
  for (const MetricSpec& metric : event_attention_metrics()) all.push_back(metric);
  return all;
}

}  // namespace

const OpSpec& attention_spec() {
  static const OpSpec spec = {
      "Attention",
      "Rotary embedding of q and k, append of k and v to the cache, causal grouped-query "
      "attention: "
      "y = softmax(scale * q k^T) v over the keys j <= past + i with attention_mask[b, j] != 0 (0 "
      "where there is none). past has the exact length keys - sequence and present is its longer "
      "copy, or past is a buffer of at least `keys` rows and present has its shape: appended in "
      "place where both lie in the same memory, else only the rows up to `keys` are written.",
      {{"q", Type::float32, false, "[batch, sequence, num_heads * head size]"},
       {"k", Type::float32, false, "[batch, sequence, kv_heads * head size]"},
       {"v", Type::float32, false, "[batch, sequence, kv_heads * head size]"},
       {"past_key", Type::float32, false,
        "[batch, kv_heads, past or capacity, head size]; head size / 4 + 1 where cache_bits is 8"},
       {"past_value", Type::float32, false, "the shape of past_key"},
       {"attention_mask", Type::int64, false, "[batch, keys]: 0 hides a key"},
       {"position_ids", Type::int64, false, "[batch, sequence]: the rotary positions"},
       {"inverse_frequency", Type::float32, true,
        "[rotated dimensions / 2]: element i and i + rotated / 2 turn by position * frequency, in "
        "float32; omitted: no rotary embedding"},
       {"past_sketch", Type::float32, true,
        "[batch, kv_heads, past or capacity, words]: bits of the keys, 32 a float, and their size; "
        "with past_event four bits of an element; float32 because ONNX Runtime supports no "
        "other type of a Fused output"},
       {"key_mean", Type::float32, true,
        "[kv_heads, head size]: subtracted from keys before they are sketched"},
       {"past_event", Type::float32, true,
        "[batch, 2 + num_heads * head size], zeros at the start: decode steps attend to the keys "
        "that weigh by past_sketch, the others have the mean value they had last"}},
      {{"y", Type::float32, false, "[batch, sequence, num_heads * head size]"},
       {"present_key", Type::float32, false,
        "[batch, kv_heads, keys or capacity, head size]; as past_key where cache_bits is 8"},
       {"present_value", Type::float32, false, "the shape of present_key"},
       {"present_sketch", Type::float32, true,
        "[batch, kv_heads, keys or capacity, words]; no words without past_sketch"},
       {"present_event", Type::float32, true, "the shape of past_event; may be its memory"}},
      false,
      attributes(),
      metrics(),
      make_attention};
  return spec;
}

}  // namespace tamiz
