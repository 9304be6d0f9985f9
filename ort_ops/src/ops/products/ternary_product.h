// A product with a weight of ternary levels (kernels/ternary/ternary.h), for stages that have one:
// its inputs, their shapes, the rows of x in scratch memory, and the tasks.
#pragma once

#include "engine/stage.h"
#include "kernels/kernels.h"
#include "ops/products/product.h"
#include "ops/products/product_ports.h"

namespace tamiz {

constexpr PortSpec kTernaryWeight = {"weight", Type::uint8, false,
                                     "[ceil(n / 16), ceil(k / 32) * 160], packed by "
                                     "tamiz_ops.pack_ternary"};
constexpr PortSpec kTernaryUnits = {"units", Type::float32, false, "[n], a factor of every output"};

struct TernaryProduct {
  enum Input : size_t { x, weight, units, mask, bias };

  const PackedWeight packed;
  const int64_t block;
  const Kernels& kernels;

  TernaryProduct(const Attributes& attributes, const Kernels& table)
      : packed(kTernaryBits, PackedWeight::positive(attributes, "n"),
               PackedWeight::positive(attributes, "k")),
        block(PackedWeight::positive(attributes, "block")),
        kernels(table) {}

  void check_constants(Ports inputs) const {
    if (inputs[weight]) packed.check(inputs[weight]);
    if (inputs[units]) check_units(inputs[units]);
    if (inputs[bias]) check_bias(inputs[bias], packed.n);
  }

  void infer(Ports inputs, Ports outputs) const {
    outputs[0].shape = product_shape(inputs[x], packed.n, packed.k);
    packed.check(inputs[weight]);
    check_units(inputs[units]);
    if (inputs[mask]) check_mask(inputs[mask], inputs[x].shape, block);
    if (inputs[bias]) check_bias(inputs[bias], packed.n);
  }

  QuantisedRows quantised(const Call& call) const {
    return QuantisedRows(call.inputs[x], static_cast<bool>(call.inputs[mask]), packed.groups());
  }

  /// Task `task` of those that quantise.
  void quantize(const Call& call, const QuantisedRows& rows, size_t task) const {
    rows.quantize(kernels.matmul, call.inputs[x], call.inputs[mask], block, call.scratch,
                  static_cast<int64_t>(task));
  }

  size_t tasks(int64_t rows) const { return divide_up(rows, kRowBlock) * chunks(); }

  /// What task `task` of these multiplies, and where its units begin.
  MultiplyArgs arguments(const Call& call, const QuantisedRows& rows, size_t task) const {
    const int64_t index = static_cast<int64_t>(task);
    MultiplyArgs args = product(
        packed, call.inputs[weight], rows.in(call.scratch), index / chunks() * kRowBlock,
        index % chunks() * task_tiles(packed), task_tiles(packed),
        call.inputs[bias] ? call.inputs[bias].as<float>() : nullptr, call.outputs[0].as<float>());
    args.skip = rows.skip;
    return args;
  }
  const float* units_at(const Call& call, size_t task) const {
    return call.inputs[units].as<float>() +
           static_cast<int64_t>(task) % chunks() * task_tiles(packed) * kTile;
  }

 private:
  int64_t chunks() const { return divide_up(packed.tiles(), task_tiles(packed)); }

  void check_units(const Tensor& given) const {
    expect_shape("units", given, Shape{1, {packed.n}}, "[n]");
  }
};

}  // namespace tamiz
