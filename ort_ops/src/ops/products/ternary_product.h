// A product with a weight of ternary levels (kernels/ternary/ternary.h), for stages that have one:
// its inputs, their shapes, the rows of x in scratch memory, and the tasks.
#pragma once

#include "engine/stage.h"
#include "kernels/kernels.h"
#include "ops/products/product.h"
#include "ops/products/product_ports.h"

namespace tamiz {

#define TERNARY_INPUTS(PORT)                                                   \
  PRODUCT_X(PORT)                                                              \
  PORT(weight, uint8, required,                                                \
       "[ceil(n / 16), ceil(k / 32) * 160], packed by tamiz_ops.pack_ternary") \
  PORT(units, float32, required, "[n], a factor of every output")              \
  PRODUCT_MASK(PORT)                                                           \
  PRODUCT_BIAS(PORT)
TAMIZ_PORTS(TernaryInput, TERNARY_INPUTS);

struct TernaryProduct {
  using In = TernaryInput;

  const PackedWeight packed;
  const int64_t block;
  const Kernels& kernels;

  TernaryProduct(const Attributes& attributes, const Kernels& table)
      : packed(kTernaryBits, PackedWeight::positive(attributes, "n"),
               PackedWeight::positive(attributes, "k")),
        block(PackedWeight::positive(attributes, "block")),
        kernels(table) {}

  void check_constants(Ports inputs) const {
    if (inputs[In::weight]) packed.check(inputs[In::weight]);
    if (inputs[In::units]) check_units(inputs[In::units]);
    if (inputs[In::bias]) check_bias(inputs[In::bias], packed.n);
  }

  void infer(Ports inputs, Ports outputs) const {
    outputs[ProductOutput::y].shape = product_shape(inputs[In::x], packed.n, packed.k);
    packed.check(inputs[In::weight]);
    check_units(inputs[In::units]);
    if (inputs[In::mask]) check_mask(inputs[In::mask], inputs[In::x].shape, block);
    if (inputs[In::bias]) check_bias(inputs[In::bias], packed.n);
  }

  QuantisedRows quantised(const Call& call) const {
    return QuantisedRows(call.inputs[In::x], static_cast<bool>(call.inputs[In::mask]),
                         packed.groups());
  }

  /// Task `task` of those that quantise.
  void quantize(const Call& call, const QuantisedRows& rows, size_t task) const {
    rows.quantize(kernels.matmul, call.inputs[In::x], call.inputs[In::mask], block, call.scratch,
                  static_cast<int64_t>(task));
  }

  size_t tasks(int64_t rows) const { return divide_up(rows, kRowBlock) * chunks(); }

  /// What task `task` of these multiplies, and where its units begin.
  MultiplyArgs arguments(const Call& call, const QuantisedRows& rows, size_t task) const {
    const int64_t index = static_cast<int64_t>(task);
    MultiplyArgs args = product(packed, call.inputs[In::weight], rows.in(call.scratch),
                                index / chunks() * kRowBlock, index % chunks() * task_tiles(packed),
                                task_tiles(packed),
                                call.inputs[In::bias] ? call.inputs[In::bias].as<float>() : nullptr,
                                call.outputs[ProductOutput::y].as<float>());
    args.skip = rows.skip;
    return args;
  }
  const float* units_at(const Call& call, size_t task) const {
    return call.inputs[In::units].as<float>() +
           static_cast<int64_t>(task) % chunks() * task_tiles(packed) * kTile;
  }

 private:
  int64_t chunks() const { return divide_up(packed.tiles(), task_tiles(packed)); }

  void check_units(const Tensor& given) const {
    expect_shape("units", given, Shape{1, {packed.n}}, "[n]");
  }
};

}  // namespace tamiz
