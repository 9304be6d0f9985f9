// The declaration of Attention.
#include "ops/attention/attention.h"
#include "ops/attention/attention_metrics.h"
#include "ops/attention/attention_ports.h"
#include "ops/attention/key_choice.h"

namespace tamiz {
namespace {

std::vector<AttributeSpec> attributes() {
  std::vector<AttributeSpec> all = {
      {"num_heads", AttributeSpec::Kind::integer, true, 0, "query heads"},
      {"kv_heads", AttributeSpec::Kind::integer, true, 0, "key/value heads"},
      {"scale", AttributeSpec::Kind::real, false, 0,
       "factor of the scores; 0: 1 / sqrt(head size)"},
      {"softcap", AttributeSpec::Kind::real, false, 0,
       "c of soft-capped scores c tanh(x / c), x = scale * q k^T, that softmax takes in place of "
       "x; "
       "0: none"},
      {"rotary_scale", AttributeSpec::Kind::real, false, 1, "factor of cosine and sine"},
      {"cache_bits", AttributeSpec::Kind::integer, false, 32,
       "of an element of a key or a value in the cache: 32, float32; 8, round(x / s) with s = max "
       "|x| / 127, four in a float's place, and then s. Products with bytes round the query to "
       "16 bits and the weights of values to 8"}};
  for (const AttributeSpec& attribute : key_choice_attributes()) all.push_back(attribute);
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
      AttentionInput::specs(),
      AttentionOutput::specs(),
      false,
      attributes(),
      AttentionMetric::specs(),
      make_attention};
  return spec;
}

}  // namespace tamiz
