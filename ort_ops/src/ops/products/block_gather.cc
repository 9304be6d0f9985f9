// y[i] = W[ids[i]], of a weight packed as kernels/products/packing.h and formats.h say.
#include "ops/products/block_gather.h"

#include <algorithm>

#include "ops/products/packed_weight.h"
#include "ops/products/product_ports.h"

namespace tamiz {
namespace {

#define BLOCK_GATHER_INPUTS(PORT)                 \
  PORT(ids, int64, required, "[...], 0 to n - 1") \
  PORT(weight, uint8, required,                   \
       "[ceil(n / 16), tile bytes], packed by tamiz_ops.pack_* or tamiz_ops.formats")
#define BLOCK_GATHER_OUTPUTS(PORT) PORT(y, float32, required, "[..., k]")
TAMIZ_PORTS(BlockGatherInput, BLOCK_GATHER_INPUTS);
TAMIZ_PORTS(BlockGatherOutput, BLOCK_GATHER_OUTPUTS);

using In = BlockGatherInput;
using Out = BlockGatherOutput;

constexpr int64_t kTaskElements = 8192;  // some microseconds

class BlockGather : public Stage {
 public:
  explicit BlockGather(const Attributes& attributes) : weight_(attributes) {}

  void check_constants(Ports inputs) const override {
    if (inputs[In::weight]) weight_.check(inputs[In::weight]);
  }

  void infer(Ports inputs, Ports outputs) const override {
    Shape shape = inputs[In::ids].shape;
    if (shape.rank >= kMaxRank) {
      throw Error("ids has shape " + text(shape) + ", expected at most " +
                  std::to_string(kMaxRank - 1) + " dimensions");
    }
    weight_.check(inputs[In::weight]);
    shape.dims[shape.rank++] = weight_.k;
    outputs[Out::y].shape = shape;
  }

  size_t tasks(const Call& call, int) const override {
    return (call.inputs[In::ids].shape.count() + task_ids() - 1) / task_ids();
  }

  void run(const Call& call, int, size_t task) const override {
    const int64_t* ids = call.inputs[In::ids].as<int64_t>();
    const int64_t first = static_cast<int64_t>(task) * task_ids();
    const int64_t end = std::min(first + task_ids(), call.inputs[In::ids].shape.count());
    for (int64_t i = first; i < end; ++i) {
      if (ids[i] < 0 || ids[i] >= weight_.n) {
        throw Error("ids holds " + std::to_string(ids[i]) + ", expected 0 to " +
                    std::to_string(weight_.n - 1));
      }
      gather(call.inputs[In::weight].as<uint8_t>(), ids[i],
             call.outputs[Out::y].as<float>() + i * weight_.k);
    }
  }

 private:
  int64_t task_ids() const { return std::max(kTaskElements / weight_.k, int64_t{1}); }

  void gather(const uint8_t* weight, int64_t row, float* y) const {
    const uint8_t* const tile = weight + row / kTile * weight_.tile_bytes();
    if (weight_.is_affine()) return gather_affine(tile, row % kTile, y);
    if (weight_.format != Format::integers) return gather_format(tile, row % kTile, y);
    weight_.bits == 8 ? gather_integers<8>(tile, row % kTile, y)
                      : gather_integers<4>(tile, row % kTile, y);
  }

  /// Quants of kOf bits, which the compiler knows.
  template <int kOf>
  void gather_integers(const uint8_t* tile, int64_t o, float* y) const {
    const int scale_bits = weight_.scale_bits;
    const uint8_t* group = tile;
    const float unit = weight_unit(tile, weight_.groups(), o, scale_bits);
    for (int64_t i = 0; i < weight_.k; i += kGroup, group += group_bytes(kOf, scale_bits)) {
      const float scale = weight_scale(group, kOf, o, scale_bits);
      const float minimum = weight_minimum(group, kOf, o, scale_bits);
      const int64_t count = std::min(kGroup, weight_.k - i);
      for (int64_t j = 0; j < count; ++j) {
        const float scaled = scale * static_cast<float>(weight_quant(group, kOf, o, j));
        y[i + j] = kOf == 8 ? scaled : unit * (scaled + minimum);
      }
    }
  }

  void gather_format(const uint8_t* tile, int64_t o, float* y) const {
    const FormatSpec& spec = weight_.spec();
    if (spec.number()) {
      for (int64_t i = 0; i < weight_.k; ++i) y[i] = format_number(weight_.format, tile, i, o);
      return;
    }
    for (int64_t i = 0; i < weight_.k; i += spec.part) {
      const int64_t g = i / kGroup, first = i % kGroup;
      const uint8_t* const planes = tile + spec.planes_of(g);
      const Factors factors = format_factors(spec, tile, g, first / spec.part, o);
      for (int64_t j = 0; j < spec.part; ++j) {
        const float value = static_cast<float>(format_value(spec, planes, o, first + j));
        const float scaled = factors.scale * value;
        y[i + j] = spec.minimum ? scaled + factors.minimum : scaled;
      }
    }
  }

  /// w = scale (quant - zero), in this order, as other tools compute it.
  void gather_affine(const uint8_t* tile, int64_t o, float* y) const {
    const Affine& affine = weight_.affine;
    for (int64_t i = 0; i < weight_.k; ++i) {
      const int64_t g = i / kGroup, part = i % kGroup / (kGroup / 2);
      const ScaleAndZero factors = affine_factors(affine, tile, weight_.groups(), g, part, o);
      const uint8_t* const planes = tile + g * affine.plane_bytes();
      const int quant = affine_quant(affine, planes, o, i % kGroup);
      y[i] = factors.scale * (static_cast<float>(quant) - factors.zero);
    }
  }

  const PackedWeight weight_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels&) {
  return std::make_unique<BlockGather>(attributes);
}

}  // namespace

const OpSpec& block_gather_spec() {
  using Kind = AttributeSpec::Kind;
  static const OpSpec spec = {"BlockGather",
                              "y = W[ids], W block-quantised: the embedding.",
                              In::specs(),
                              Out::specs(),
                              false,
                              {kBits,
                               {"n", Kind::integer, true, 0, "rows of the weight"},
                               {"k", Kind::integer, true, 0, "columns of the weight"},
                               kScaleBits,
                               kFormat},
                              {},
                              make};
  return spec;
}

}  // namespace tamiz
