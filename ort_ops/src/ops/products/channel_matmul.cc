// Phase 0 quantises the rows of x and, of a single row, lists its active inputs; phase 1
// multiplies: a task is a panel of the weight times the single row or times a block of rows.
#include "ops/products/channel_matmul.h"

#include <algorithm>
#include <cstring>

#include "base/metrics.h"
#include "ops/products/channel_product.h"
#include "ops/products/product_ports.h"

namespace tamiz {
namespace {

#define CHANNEL_MATMUL_INPUTS(PORT)                                                               \
  PRODUCT_X(PORT)                                                                                 \
  PORT(weight, uint8, required,                                                                   \
       "[ceil(n / 64), 4, ceil(k / 32) * 320], or with scales of 8 bits [.., .., ceil(k / 32) * " \
       "288 + 32]; packed by tamiz_ops.pack_channels*")                                           \
  PRODUCT_MASK(PORT)                                                                              \
  PRODUCT_BIAS(PORT)
TAMIZ_PORTS(ChannelMatMulInput, CHANNEL_MATMUL_INPUTS);

using In = ChannelMatMulInput;
using Out = ProductOutput;

class ChannelMatMul : public Stage {
 public:
  ChannelMatMul(const Attributes& attributes, const Kernels& kernels)
      : weight_(attributes),
        block_(PackedWeight::positive(attributes, "block")),
        kernels_(kernels) {}

  void check_constants(Ports inputs) const override {
    if (inputs[In::weight]) weight_.check(inputs[In::weight]);
    if (inputs[In::bias]) check_bias(inputs[In::bias], weight_.n);
  }

  void infer(Ports inputs, Ports outputs) const override {
    outputs[Out::y].shape = product_shape(inputs[In::x], weight_.n, weight_.k);
    weight_.check(inputs[In::weight]);
    if (inputs[In::mask]) check_mask(inputs[In::mask], inputs[In::x].shape, block_);
    if (inputs[In::bias]) check_bias(inputs[In::bias], weight_.n);
  }

  size_t scratch_bytes(const Call& call) const override { return rows(call).bytes(); }

  int phases() const override { return 2; }

  size_t tasks(const Call& call, int phase) const override {
    const ChannelRows x = rows(call);
    if (phase == 0) return x.prepare_tasks(weight_.k);
    return divide_up(x.rows(), kRowBlock) * weight_.panels();
  }

  void run(const Call& call, int phase, size_t task) const override {
    const ChannelRows x = rows(call);
    const int64_t index = static_cast<int64_t>(task);
    if (phase == 0) {
      return x.prepare(kernels_, call.inputs[In::x], call.inputs[In::mask], block_, call.scratch,
                       index);
    }
    if (task == 0) count(call, x);
    if (x.single()) {
      multiply_row(call, x, index);
    } else {
      multiply_rows(call, x, index / weight_.panels() * kRowBlock, index % weight_.panels());
    }
  }

  /// Of a single row only some inputs are read: with a mask too few of them.
  Reads reads(const Call& call) const override {
    if (!rows(call).single() || call.inputs[In::mask]) return {};
    return {call.inputs[In::weight].as<uint8_t>(), static_cast<size_t>(weight_.bytes())};
  }

 private:
  ChannelRows rows(const Call& call) const {
    return ChannelRows(call.inputs[In::x], weight_, static_cast<bool>(call.inputs[In::mask]));
  }

  const float* bias(const Call& call, int64_t panel) const {
    return call.inputs[In::bias] ? call.inputs[In::bias].as<float>() + panel * kPanel : nullptr;
  }

  /// Outputs of a panel that exist.
  int64_t wanted(int64_t panel) const { return std::min(kPanel, weight_.n - panel * kPanel); }

  void multiply_row(const Call& call, const ChannelRows& x, int64_t panel) const {
    const size_t bytes = static_cast<size_t>(wanted(panel)) * sizeof(float);
    alignas(64) float y[kPanel] = {};
    if (bias(call, panel)) std::memcpy(y, bias(call, panel), bytes);
    kernels_.channels.multiply({weight_.at(call.inputs[In::weight], panel), weight_.layout(panel),
                                x.active(call.scratch), x.listed(call.scratch), y});
    std::memcpy(call.outputs[Out::y].as<float>() + panel * kPanel, y, bytes);
  }

  void multiply_rows(const Call& call, const ChannelRows& x, int64_t row, int64_t panel) const {
    thread_local Scratch memory;
    const PanelLayout layout = weight_.layout(panel);
    const size_t bytes = static_cast<size_t>(layout.bytes());
    uint8_t* const tiles = reinterpret_cast<uint8_t*>(memory.reserve(bytes));
    kernels_.channels.to_tiles(weight_.at(call.inputs[In::weight], panel), layout, tiles);
    MultiplyArgs args;
    args.weight = tiles;
    args.bits = 4;
    args.scale_bits = layout.scale_bits;
    args.tiles = tile_count(wanted(panel));
    args.x = x.in(call.scratch);
    args.first_row = row;
    args.rows = std::min(kRowBlock, x.rows() - row);
    args.skip = false;
    args.bias = bias(call, panel);
    args.outputs = wanted(panel);
    args.y = call.outputs[Out::y].as<float>() + row * weight_.n + panel * kPanel;
    args.y_stride = weight_.n;
    kernels_.matmul.multiply(args);
  }

  /// A single row reads the records of its active inputs, the scales of their groups, the units.
  void count(const Call& call, const ChannelRows& x) const {
    int64_t bytes = weight_.bytes();
    if (x.single()) {
      const ActiveGroup* const active = x.active(call.scratch).groups;
      int64_t inputs = 0;
      const int64_t groups = x.listed(call.scratch).groups;
      for (int64_t g = 0; g < groups; ++g) inputs += active[g].count;
      const PanelLayout layout{kHalfPanel, 0, weight_.scale_bits};  // the units alone
      const int64_t factors = groups * kHalfPanel * 2 * weight_.scale_bits / 8;
      bytes = (inputs * kHalfPanel / 2 + factors + layout.bytes()) * weight_.half_panels();
    }
    call.metrics->add(ProductMetric::bytes_dense, static_cast<double>(weight_.bytes()));
    call.metrics->add(ProductMetric::bytes_read, static_cast<double>(bytes));
  }

  const ChannelWeight weight_;
  const int64_t block_;
  const Kernels& kernels_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<ChannelMatMul>(attributes, kernels);
}

}  // namespace

const OpSpec& channel_matmul_spec() {
  using Kind = AttributeSpec::Kind;
  static const OpSpec spec = {
      "ChannelMatMul",
      "y = (x * mask) W^T + bias, W of 4 bits packed by input channel: of a single row the weights "
      "of inputs that are 0 or masked are not read. Bit for bit the result of BlockMatMul.",
      In::specs(),
      Out::specs(),
      false,
      {{"n", Kind::integer, true, 0, "outputs"},
       {"k", Kind::integer, true, 0, "inputs"},
       {"block", Kind::integer, false, 1, "inputs that share a byte of the mask"},
       {"scale_bits", Kind::integer, false, 16, "of a scale and of a minimum: 16 or 8"}},
      ProductMetric::specs(),
      make};
  return spec;
}

}  // namespace tamiz
