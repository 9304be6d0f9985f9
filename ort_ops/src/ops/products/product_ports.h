// What the ops that multiply with a weight have in common: ports, metrics, attributes, the bias.
#pragma once

#include "base/shapes.h"
#include "engine/op_spec.h"
#include "ops/products/packed_weight.h"
#include "ops/products/quantised_rows.h"

namespace tamiz {

#define PRODUCT_X(PORT) PORT(x, float32, required, "[..., k]")
#define PRODUCT_MASK(PORT) \
  PORT(mask, uint8, optional, "[..., ceil(k / block)]; 0 leaves a block of inputs out")
#define PRODUCT_BIAS(PORT) PORT(bias, float32, optional, "[n]")
#define PRODUCT_DELTAS(PORT)                                                                \
  PORT(deltas, uint8, required, "records of what is stored, made by tamiz_ops.pack_deltas") \
  PORT(starts, int64, required, "[ceil(n / 16) + 1], where the records of a tile begin")
#define PRODUCT_OUTPUTS(PORT) PORT(y, float32, required, "[..., n]")
TAMIZ_PORTS(ProductOutput, PRODUCT_OUTPUTS);

#define PRODUCT_METRICS(METRIC)                                                               \
  METRIC(bytes_read, "matmul.bytes_read", "bytes", "Bytes of packed weights that were read.") \
  METRIC(bytes_dense, "matmul.bytes_dense", "bytes",                                          \
         "Bytes of packed weights that unmasked calls would read.")
TAMIZ_METRICS(ProductMetric, PRODUCT_METRICS);

constexpr AttributeSpec kOutputs = {"n", AttributeSpec::Kind::integer, true, 0, "outputs"};
constexpr AttributeSpec kInputs = {"k", AttributeSpec::Kind::integer, true, 0, "inputs"};
constexpr AttributeSpec kBits = {"bits", AttributeSpec::Kind::integer, false, 0,
                                 "of a weight without a format: 4 or 8"};
constexpr AttributeSpec kFormat = {"format", AttributeSpec::Kind::text, false, 0,
                                   "of the weight: a name in tamiz_ops.formats, such as q4_k; "
                                   "bits and scale_bits are then left out"};
constexpr AttributeSpec kScaleBits = {"scale_bits", AttributeSpec::Kind::integer, false, 16,
                                      "of a scale and of a minimum: 16, or 8 where bits is 4"};
constexpr AttributeSpec kActivationBits = {
    "activation_bits", AttributeSpec::Kind::integer, false, 16,
    "of a quantised input: 16, 8, which makes many rows faster, or 32, which keeps float32 inputs"};
constexpr AttributeSpec kMaskBlock = {"block", AttributeSpec::Kind::integer, false, 32,
                                      "inputs that share a byte of the mask"};

/// The value of 'activation_bits', at most `most`.
inline int activation_bits(const Attributes& attributes, int most = 32) {
  const int64_t value = attributes.ints.at("activation_bits");
  if (value == 8 || value == 16 || (value == 32 && most == 32)) return static_cast<int>(value);
  throw Error("attribute 'activation_bits' is " + std::to_string(value) +
              (most == 32 ? ", expected 8, 16 or 32" : ", expected 8 or 16"));
}

inline void check_bias(const Tensor& bias, int64_t n) {
  expect_shape("bias", bias, Shape{1, {n}}, "[n]");
}

}  // namespace tamiz
