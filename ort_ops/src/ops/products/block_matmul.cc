// Phase 0 quantises the rows of x, or of an activation of x, into scratch memory, phase 1
// multiplies: a task is some tiles of the weight times a block of rows. Rows of 8 bits are
// multiplied as bytes, where the instruction set can, many more quickly than few; the bits are the
// same.
//
// With 32 bits x = s q + t r: q are its quants of 16 bits, r those of what q leaves. What r leaves
// is less than 2^-32 of a group's largest input, less than float32 resolves. q and r are two rows
// of one product, so that weights are read and unpacked once.
//
// Where another product of bytes alone reads the outputs, this one rounds them for it: a task of
// phase 1 applies the other's activation to its outputs, and rounds them, while they are in the
// caches. The other product has no phase 0 then.
#include "ops/products/block_matmul.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/metrics.h"
#include "kernels/dispatch.h"
#include "kernels/kernels.h"
#include "ops/products/product.h"

namespace tamiz {
namespace {

using In = BlockMatMulInput;
using Out = ProductOutput;

class BlockMatMul : public Stage {
 public:
  BlockMatMul(const Attributes& attributes, const Kernels& kernels)
      : weight_(attributes),
        block_(PackedWeight::positive(attributes, "block")),
        activation_bits_(activation_bits(attributes)),
        quant_rows_(activation_bits_ == 32 ? 2 : 1),
        quantize_(quantizer(kernels.matmul, activation_bits_)),
        kernels_(kernels.matmul),
        affine_kernels_(affine_kernels(kernels)),
        wide_(is_wide(attributes, weight_, activation_bits_)),
        byte_kernels_(wide_                                    ? &kernels.wide
                      : takes_bytes(weight_, activation_bits_) ? kernels.bytes
                                                               : nullptr) {}

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

  size_t scratch_bytes(const Call& call) const override {
    if (is_prepared(call)) return 0;
    if (as_bytes(call)) return quantised_bytes(call).plan.bytes();
    return quantised(call).plan.bytes();
  }

  bool prepares_as(const Stage& other, const int* inputs, const int* others) const override {
    const auto* same = dynamic_cast<const BlockMatMul*>(&other);
    return same && same->weight_.k == weight_.k && same->block_ == block_ &&
           same->activation_bits_ == activation_bits_ && same->byte_kernels_ == byte_kernels_ &&
           same->activation_ == activation_ && inputs[In::x] == others[In::x] &&
           inputs[In::mask] == others[In::mask];
  }

  bool apply_first(ActivationKernel f) override {
    if (activation_) return false;
    activation_ = f;
    return true;
  }

  bool prepare_reader(Stage& reader, Ports inputs) override {
    auto* const next = dynamic_cast<BlockMatMul*>(&reader);
    if (!next || inputs[In::mask] || next->weight_.k != weight_.n) return false;
    if (!takes_blocks() || !next->takes_blocks()) return false;
    next_ = next;
    next->prepared_ = true;
    return true;
  }

  int phases() const override { return 2; }

  size_t tasks(const Call& call, int phase) const override {
    const int64_t rows = row_count(call.inputs[In::x].shape);
    if (phase == 0) return is_prepared(call) ? 0 : row_tasks(rows, weight_.k);
    return divide_up(rows, rows_of_task(call)) * chunks(call);
  }

  void run(const Call& call, int phase, size_t task) const override {
    const int64_t index = static_cast<int64_t>(task);
    if (phase == 1 && task == 0) count(call, quantised(call));
    if (as_bytes(call)) {
      const ByteRows x = byte_rows(call);
      if (phase == 1) return multiply(call, x, index);
      return quantize_task(byte_kernels_->quantize, call.inputs[In::x], call.inputs[In::mask],
                           block_, x, index, activation_);
    }
    const QuantisedRows x = quantised(call);
    if (phase == 0) {
      return quantize_task(quantize_, call.inputs[In::x], call.inputs[In::mask], block_,
                           x.in(call.scratch), index, activation_);
    }
    quant_rows_ == 2 ? multiply_pairs(call, x, index) : multiply(call, x, index);
  }

  Reads reads(const Call& call) const override {
    const bool few = row_count(call.inputs[In::x].shape) <= kRowsTogether;
    if (!few || call.inputs[In::mask]) return {};
    return {call.inputs[In::weight].as<uint8_t>(), static_cast<size_t>(weight_.bytes())};
  }

 private:
  QuantisedRows quantised(const Call& call) const {
    return QuantisedRows(call.inputs[In::x], static_cast<bool>(call.inputs[In::mask]),
                         weight_.groups(), quant_rows_);
  }

  /// Whether x, of 8 bits, and the weight have one scale for kWideInputs inputs.
  static bool is_wide(const Attributes& attributes, const PackedWeight& weight, int bits) {
    const auto given = attributes.ints.find("scale_inputs");  // ops made of this one have none
    const int64_t inputs = given == attributes.ints.end() ? kGroup : given->second;
    if (inputs == kGroup) return false;
    if (inputs != kWideInputs || weight.is_affine() || weight.format != Format::integers ||
        weight.bits != 8) {
      throw Error("attribute 'scale_inputs' is " + std::to_string(inputs) + ", expected " +
                  std::to_string(kGroup) + ", or " + std::to_string(kWideInputs) +
                  " with a weight of format q8_0");
    }
    return bits == 8;
  }

  /// Whether the rows are many enough for products of bytes; those of words skip what a mask of one
  /// row does not need.
  bool as_bytes(const Call& call) const {
    if (wide_) return true;
    const int64_t rows = row_count(call.inputs[In::x].shape);
    return byte_kernels_ && rows >= byte_kernels_->fewest && !(rows == 1 && call.inputs[In::mask]);
  }

  /// Whether a whole block of rows is multiplied as bytes.
  bool takes_blocks() const { return byte_kernels_ && byte_kernels_->fewest <= kByteRows; }

  /// Whether the product before rounds so many rows: as bytes they fit the memory of its outputs.
  bool is_prepared(int64_t rows) const {
    const size_t floats = sizeof(float) * static_cast<size_t>(rows * weight_.k);
    return prepared_ && rows >= kByteRows &&
           QuantisedBytes(rows, weight_.groups()).plan.bytes() <= floats;
  }
  bool is_prepared(const Call& call) const {
    return is_prepared(row_count(call.inputs[In::x].shape));
  }

  /// Whether the outputs are rounded for the next product.
  bool prepares_next(const Call& call) const {
    return next_ && next_->is_prepared(row_count(call.inputs[In::x].shape));
  }

  QuantisedBytes quantised_bytes(const Call& call) const {
    return QuantisedBytes(row_count(call.inputs[In::x].shape), weight_.groups());
  }

  /// The rows of x as bytes, in scratch memory or in that of x itself.
  ByteRows byte_rows(const Call& call) const {
    std::byte* const x = call.inputs[In::x].as<std::byte>();
    return quantised_bytes(call).in(is_prepared(call) ? x : call.scratch);
  }

  /// Tiles that the kernel takes together.
  int64_t together(const Call& call) const {
    const int64_t rows = row_count(call.inputs[In::x].shape) * quant_rows_;
    if (as_bytes(call)) return rows < byte_kernels_->many ? kTilesTogether : byte_kernels_->tiles;
    return weight_.is_affine() || rows <= 2 * kRowsTogether ? kTilesTogether : kTilesOfMany;
  }

  /// Tiles of a task, and tasks of a block of rows.
  int64_t tiles(const Call& call) const {
    const int64_t each = task_tiles(weight_, together(call));
    if (!prepares_next(call)) return each;
    const int64_t inputs = next_->wide_ ? kWideInputs : kGroup;  // that share a scale
    const int64_t whole = std::lcm(together(call), inputs / kTile);
    return divide_up(each, whole) * whole;
  }
  int64_t chunks(const Call& call) const { return divide_up(weight_.tiles(), tiles(call)); }

  /// Most rows of a task. Outputs that are rounded for the next product stay in the second cache.
  int64_t rows_of_task(const Call& call) const {
    if (!as_bytes(call)) return kRowBlock / quant_rows_;
    return prepares_next(call) ? kByteRowBlock / 2 : kByteRowBlock;
  }

  /// The tiles of a task and its rows.
  MultiplyArgs of_task(const Call& call, const QuantRows& x, int64_t task) const {
    const float* bias = call.inputs[In::bias] ? call.inputs[In::bias].as<float>() : nullptr;
    const int64_t most = rows_of_task(call), each = tiles(call);
    const int64_t first = task / chunks(call) * most;
    MultiplyArgs args =
        product(weight_, call.inputs[In::weight], x, first, task % chunks(call) * each, each, bias,
                call.outputs[Out::y].as<float>());
    args.rows = std::min(most, x.rows - first);
    return args;
  }

  void multiply(const Call& call, const ByteRows& x, int64_t task) const {
    QuantRows rows{};
    rows.rows = x.rows;
    rows.groups = x.groups;
    const MultiplyArgs args = of_task(call, rows, task);
    if (!prepares_next(call)) return byte_kernels_->multiply(args, x);
    const QuantisedBytes rounded(x.rows, next_->weight_.groups());
    const int64_t output = task % chunks(call) * tiles(call) * kTile;
    std::byte* const y = call.outputs[Out::y].as<std::byte>();
    multiply_for_next(args, x, rounded.in(y).from(output / kGroup));
  }

  /// Rounds the outputs of a task for the next product.
  void multiply_for_next(MultiplyArgs args, const ByteRows& x, const ByteRows& to) const {
    thread_local std::vector<float> outputs;
    args.y_stride = args.tiles * kTile;
    outputs.resize(static_cast<size_t>(args.rows * args.y_stride));
    args.y = outputs.data();
    byte_kernels_->multiply(args, x);
    for (int64_t r = 0; r < args.rows; ++r) {
      const float* const y = args.y + r * args.y_stride;
      next_->byte_kernels_->quantize(activated(next_->activation_, y, args.outputs), args.outputs,
                                     nullptr, 1, to, args.first_row + r);
    }
  }

  void multiply(const Call& call, const QuantisedRows& x, int64_t task) const {
    MultiplyArgs args = of_task(call, x.in(call.scratch), task);
    args.skip = x.skip;
    multiply(args);
  }

  void multiply(const MultiplyArgs& args) const {
    if (weight_.is_affine()) return affine_kernels_.multiply(args, weight_.affine);
    kernels_.multiply(args);
  }

  /// A few tiles at a time, whose sums stay in the cache.
  void multiply_pairs(const Call& call, const QuantisedRows& x, int64_t task) const {
    alignas(64) float sums[kRowBlock * kTilesTogether * kTile];
    const float* bias = call.inputs[In::bias] ? call.inputs[In::bias].as<float>() : nullptr;
    const int64_t first = task / chunks(call) * kRowBlock, step = together(call);
    const int64_t begin = task % chunks(call) * tiles(call);
    const int64_t end = std::min(begin + tiles(call), weight_.tiles());
    float* const y = call.outputs[Out::y].as<float>() + first / 2 * weight_.n;
    for (int64_t tile = begin; tile < end; tile += step) {
      MultiplyArgs args = product(weight_, call.inputs[In::weight], x.in(call.scratch), first, tile,
                                  std::min(step, end - tile), nullptr, nullptr);
      args.skip = x.skip;
      args.y = sums;
      args.y_stride = step * kTile;
      multiply(args);
      const int64_t output = tile * kTile;
      add_pairs(args, bias ? bias + output : nullptr, y + output, weight_.n);
    }
  }

  void count(const Call& call, const QuantisedRows& x) const {
    call.metrics->add(ProductMetric::bytes_dense, static_cast<double>(weight_.bytes()));
    call.metrics->add(
        ProductMetric::bytes_read,
        static_cast<double>(x.skip && !wide_
                                ? bytes_kept(weight_, x.in(call.scratch).kept, quant_rows_)
                                : weight_.bytes()));
  }

  const PackedWeight weight_;
  const int64_t block_;
  const int activation_bits_;
  const int64_t quant_rows_;  // of a row of x
  decltype(MatMulKernels::quantize) const quantize_;
  const MatMulKernels& kernels_;
  const AffineKernels& affine_kernels_;
  const bool wide_;
  ActivationKernel activation_ = nullptr;  // applied to x, before it is masked
  const ByteKernels* const byte_kernels_;
  const BlockMatMul* next_ = nullptr;  // which the outputs are rounded for
  bool prepared_ = false;              // whether another product rounds x
};

constexpr AttributeSpec kScaleInputs = {
    "scale_inputs", AttributeSpec::Kind::integer, false, kGroup,
    "that share a scale of the weight: 32, or 128 where the scales of a q8_0 weight are equal "
    "within 128 inputs. Inputs of 8 bits then share a scale, too"};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<BlockMatMul>(attributes, kernels);
}

}  // namespace

const OpSpec& block_matmul_spec() {
  static const OpSpec spec = {
      "BlockMatMul",
      "y = (x * mask) W^T + bias, W block-quantised or of 16-bit floats. x is quantised to 16 or 8 "
      "bits in every group of 32 inputs, or to twice 16; products of integers are exact.",
      In::specs(),
      Out::specs(),
      false,
      {kBits, kOutputs, kInputs, kMaskBlock, kScaleBits, kFormat, kActivationBits, kScaleInputs},
      ProductMetric::specs(),
      make};
  return spec;
}

}  // namespace tamiz
