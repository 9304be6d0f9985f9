// Phase 0 quantises the rows of x and, of few rows, spreads them over lanes. Phase 1 multiplies: a
// task is a block of outputs times each of few rows, or, as a tile, times a block of many rows.
#include "ops/products/chosen_matmul.h"

#include <algorithm>
#include <cstring>

#include "base/metrics.h"
#include "base/scratch.h"
#include "kernels/chosen/chosen.h"
#include "kernels/kernels.h"
#include "ops/products/packed_weight.h"
#include "ops/products/product_ports.h"
#include "ops/products/quantised_rows.h"

namespace tamiz {
namespace {

#define CHOSEN_MATMUL_INPUTS(PORT)                                                          \
  PRODUCT_X(PORT)                                                                           \
  PORT(weight, uint8, required,                                                             \
       "[n, ceil(k / 512) * 320], or with scales of 8 bits [n, ceil(k / 512) * 288 + 32]; " \
       "packed by tamiz_ops.pack_records*")                                                 \
  PORT(mask, uint8, required, "[..., n]; 0 leaves an output out")                           \
  PRODUCT_BIAS(PORT)
TAMIZ_PORTS(ChosenMatMulInput, CHOSEN_MATMUL_INPUTS);

using In = ChosenMatMulInput;
using Out = ProductOutput;

/// Rows that are multiplied one by one: more are faster with all outputs, as tiles.
constexpr int64_t kFewRows = 8;
/// Outputs of a task of few rows.
constexpr int64_t kTaskOutputs = 256;

/// The rows of x in scratch memory, and few of them spread.
class ChosenRows {
 public:
  ChosenRows(const Tensor& x, int64_t groups)
      : rows_(row_count(x.shape), groups), plan_(rows_.plan) {
    if (!few()) return;
    const int64_t padded = chunk_count(groups) * kChunk;
    pairs_ = plan_.reserve_rows<int32_t>(rows(), padded * kChunkPairs);
    scales_ = plan_.reserve_rows<float>(rows(), padded);
    sums_ = plan_.reserve_rows<float>(rows(), padded);
  }

  int64_t rows() const { return rows_.rows; }
  bool few() const { return rows() <= kFewRows; }
  size_t bytes() const { return plan_.bytes(); }
  size_t prepare_tasks(int64_t k) const { return rows_.tasks(k); }
  QuantRows in(std::byte* scratch) const { return rows_.in(scratch); }
  SpreadRow spread(std::byte* scratch, int64_t row) const {
    return {pairs_.row(scratch, row), scales_.row(scratch, row), sums_.row(scratch, row)};
  }

  void prepare(const Kernels& kernels, const Tensor& x, std::byte* scratch, int64_t task) const {
    rows_.quantize(kernels.matmul, x, Tensor(), 1, scratch, task);
    if (!few()) return;
    const auto [first, end] = rows_.task(task, x.shape.dims[x.shape.rank - 1]);
    for (int64_t row = first; row < end; ++row) {
      spread_row(in(scratch), row, spread(scratch, row));
    }
  }

 private:
  QuantisedRows rows_;
  ScratchPlan plan_;
  ScratchRows<int32_t> pairs_;
  ScratchRows<float> scales_, sums_;
};

class ChosenMatMul : public Stage {
 public:
  ChosenMatMul(const Attributes& attributes, const Kernels& kernels)
      : n_(PackedWeight::positive(attributes, "n")),
        k_(PackedWeight::positive(attributes, "k")),
        scale_bits_(PackedWeight::scale_bits_of(attributes, 4)),
        kernels_(kernels),
        chosen_(chosen_kernels(kernels)) {}

  void check_constants(Ports inputs) const override {
    if (inputs[In::weight]) check_weight(inputs[In::weight]);
    if (inputs[In::bias]) check_bias(inputs[In::bias], n_);
  }

  void infer(Ports inputs, Ports outputs) const override {
    const Shape shape = product_shape(inputs[In::x], n_, k_);
    outputs[Out::y].shape = shape;
    check_weight(inputs[In::weight]);
    expect_shape("mask", inputs[In::mask], shape, "the shape of y, one byte for every output");
    if (inputs[In::bias]) check_bias(inputs[In::bias], n_);
  }

  size_t scratch_bytes(const Call& call) const override { return rows(call).bytes(); }

  int phases() const override { return 2; }

  size_t tasks(const Call& call, int phase) const override {
    const ChosenRows x = rows(call);
    if (phase == 0) return x.prepare_tasks(k_);
    if (x.few()) return divide_up(n_, kTaskOutputs);
    return divide_up(x.rows(), kRowBlock) * tile_count(n_);
  }

  void run(const Call& call, int phase, size_t task) const override {
    const ChosenRows x = rows(call);
    const int64_t index = static_cast<int64_t>(task);
    if (phase == 0) return x.prepare(kernels_, call.inputs[In::x], call.scratch, index);
    if (task == 0) count(call, x);
    if (x.few()) {
      for (int64_t row = 0; row < x.rows(); ++row) multiply_row(call, x, row, index);
    } else {
      const int64_t tiles = tile_count(n_);
      multiply_rows(call, x, index / tiles * kRowBlock, index % tiles);
    }
  }

 private:
  int64_t groups() const { return group_count(k_); }
  int64_t record() const { return record_bytes(groups(), scale_bits_); }
  ChosenRows rows(const Call& call) const { return ChosenRows(call.inputs[In::x], groups()); }
  const float* bias(const Call& call) const {
    return call.inputs[In::bias] ? call.inputs[In::bias].as<float>() : nullptr;
  }

  void check_weight(const Tensor& weight) const {
    const std::string meaning = "a record for each of n = " + std::to_string(n_) +
                                " outputs, k = " + std::to_string(k_) +
                                (scale_bits_ == 16 ? "" : ", scale_bits = 8");
    expect_shape("weight", weight, Shape{2, {n_, record()}}, meaning.c_str());
  }

  void multiply_row(const Call& call, const ChosenRows& x, int64_t row, int64_t task) const {
    const uint8_t* const mask = call.inputs[In::mask].as<uint8_t>() + row * n_;
    float* const y = call.outputs[Out::y].as<float>() + row * n_;
    const int64_t first = task * kTaskOutputs, end = std::min(n_, first + kTaskOutputs);
    int32_t outputs[kTaskOutputs + kRecordsAhead];
    int64_t chosen = 0;
    for (int64_t o = first; o < end; ++o) {
      y[o] = 0.0f;
      outputs[chosen] = static_cast<int32_t>(o);
      chosen += mask[o] != 0;
    }
    int64_t listed = chosen;  // with those that the next task begins with
    for (int64_t o = end; o < n_ && listed < chosen + kRecordsAhead; ++o) {
      outputs[listed] = static_cast<int32_t>(o);
      listed += mask[o] != 0;
    }
    chosen_.multiply({call.inputs[In::weight].as<uint8_t>(), groups(), scale_bits_,
                      x.spread(call.scratch, row), outputs, chosen, listed, bias(call), y});
  }

  void multiply_rows(const Call& call, const ChosenRows& x, int64_t row, int64_t tile) const {
    thread_local Scratch memory;
    const int64_t first = tile * kTile, outputs = std::min(kTile, n_ - first);
    const size_t bytes = static_cast<size_t>(tile_bytes(groups(), 4, scale_bits_));
    uint8_t* const packed = reinterpret_cast<uint8_t*>(memory.reserve(bytes));
    const uint8_t* const records = call.inputs[In::weight].as<uint8_t>() + first * record();
    records_to_tile(records, groups(), scale_bits_, outputs, packed);
    MultiplyArgs args;
    args.weight = packed;
    args.bits = 4;
    args.scale_bits = scale_bits_;
    args.tiles = 1;
    args.x = x.in(call.scratch);
    args.first_row = row;
    args.rows = std::min(kRowBlock, x.rows() - row);
    args.skip = false;
    args.bias = bias(call) ? bias(call) + first : nullptr;
    args.outputs = outputs;
    args.y = call.outputs[Out::y].as<float>() + row * n_ + first;
    args.y_stride = n_;
    kernels_.matmul.multiply(args);
    const uint8_t* mask = call.inputs[In::mask].as<uint8_t>() + row * n_ + first;
    for (int64_t r = 0; r < args.rows; ++r, mask += n_) {
      for (int64_t o = 0; o < outputs; ++o) {
        if (mask[o] == 0) args.y[r * n_ + o] = 0.0f;
      }
    }
  }

  /// Few rows read the records of the outputs that any of them has.
  void count(const Call& call, const ChosenRows& x) const {
    int64_t read = n_;
    if (x.few()) {
      const uint8_t* const mask = call.inputs[In::mask].as<uint8_t>();
      read = 0;
      for (int64_t o = 0; o < n_; ++o) {
        bool any = false;
        for (int64_t row = 0; row < x.rows(); ++row) any |= mask[row * n_ + o] != 0;
        read += any;
      }
    }
    call.metrics->add(ProductMetric::bytes_dense, static_cast<double>(n_ * record()));
    call.metrics->add(ProductMetric::bytes_read, static_cast<double>(read * record()));
  }

  const int64_t n_, k_;
  const int scale_bits_;
  const Kernels& kernels_;
  const ChosenKernels& chosen_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<ChosenMatMul>(attributes, kernels);
}

}  // namespace

const OpSpec& chosen_matmul_spec() {
  using Kind = AttributeSpec::Kind;
  static const OpSpec spec = {
      "ChosenMatMul",
      "y = (x W^T + bias) * mask, W of 4 bits packed by output: of few rows the weights of outputs "
      "that are masked are not read. Other outputs are bit for bit those of BlockMatMul.",
      In::specs(),
      Out::specs(),
      false,
      {{"n", Kind::integer, true, 0, "outputs"},
       {"k", Kind::integer, true, 0, "inputs"},
       {"scale_bits", Kind::integer, false, 16, "of a scale and of a minimum: 16 or 8"}},
      ProductMetric::specs(),
      make};
  return spec;
}

}  // namespace tamiz
