// What the ops that multiply with a weight have in common: declarations, the bias, the rows of x.
#pragma once

#include "base/shapes.h"
#include "engine/op_spec.h"
#include "ops/products/packed_weight.h"
#include "ops/products/quantised_rows.h"

namespace tamiz {

constexpr PortSpec kProductX = {"x", Type::float32, false, "[..., k]"};
constexpr PortSpec kProductY = {"y", Type::float32, false, "[..., n]"};
constexpr PortSpec kProductMask = {"mask", Type::uint8, true,
                                   "[..., ceil(k / block)]; 0 leaves a block of inputs out"};
constexpr PortSpec kProductBias = {"bias", Type::float32, true, "[n]"};
constexpr PortSpec kDeltas = {"deltas", Type::uint8, false,
                              "records of what is stored, made by tamiz_ops.pack_deltas"};
constexpr PortSpec kDeltaStarts = {"starts", Type::int64, false,
                                   "[ceil(n / 16) + 1], where the records of a tile begin"};

constexpr AttributeSpec kOutputs = {"n", AttributeSpec::Kind::integer, true, 0, "outputs"};
constexpr AttributeSpec kInputs = {"k", AttributeSpec::Kind::integer, true, 0, "inputs"};
constexpr AttributeSpec kBits = {"bits", AttributeSpec::Kind::integer, false, 0,
                                 "of a weight without a format: 4 or 8"};
constexpr AttributeSpec kFormat = {"format", AttributeSpec::Kind::text, false, 0,
                                   "of the weight: a name in tamiz_ops.formats, such as q4_k; "
                                   "bits and scale_bits are then left out"};
constexpr AttributeSpec kScaleBits = {"scale_bits", AttributeSpec::Kind::integer, false, 16,
                                      "of a scale and of a minimum: 16, or 8 where bits is 4"};
constexpr AttributeSpec kMaskBlock = {"block", AttributeSpec::Kind::integer, false, 32,
                                      "inputs that share a byte of the mask"};

inline void check_bias(const Tensor& bias, int64_t n) {
  expect_shape("bias", bias, Shape{1, {n}}, "[n]");
}

}  // namespace tamiz
