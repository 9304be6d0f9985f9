// Phase 0 quantises the rows of x into scratch memory, phase 1 multiplies: a task is some tiles of
// the weight times a block of rows.
#include "ops/block_matmul.h"

#include <algorithm>

#include "kernels/kernels.h"
#include "ops/metrics.h"
#include "ops/packed_weight.h"
#include "ops/scratch.h"

namespace tamiz {
namespace {

constexpr int64_t kTaskInputs = 16384;     // quantised by a task, some microseconds
constexpr int64_t kTaskBytes = 48 * 1024;  // of weight read by a task, some microseconds
constexpr int64_t kTaskTiles = 4;          // and at least these, which a kernel takes at a time
enum Metric : size_t { bytes_read, bytes_dense };

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t row_count(const Shape& shape) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < shape.rank; ++i) rows *= shape.dims[i];
  return rows;
}

class BlockMatMul : public Stage {
 public:
  BlockMatMul(const Attributes& attributes, const Kernels& kernels)
      : weight_(attributes),
        block_(PackedWeight::positive(attributes, "block")),
        task_tiles_(std::max(kTaskBytes / (kTaskTiles * weight_.tile_bytes()), int64_t{1}) *
                    kTaskTiles),
        kernels_(kernels.matmul) {}

  void check_constants(Ports inputs) const override {
    if (inputs[1]) weight_.check(inputs[1]);
    if (inputs[3]) check_bias(inputs[3]);
  }

  void infer(Ports inputs, Ports outputs) const override {
    Shape shape = inputs[0].shape;
    if (shape.rank < 1) throw Error("x is a scalar, expected [..., k]");
    int64_t& last = shape.dims[shape.rank - 1];
    if (last != weight_.k) {
      throw Error("x has shape " + text(shape) + ", expected k = " + std::to_string(weight_.k) +
                  " as its last dimension");
    }
    weight_.check(inputs[1]);
    if (inputs[2]) {
      last = divide_up(weight_.k, block_);
      expect_shape("mask", inputs[2], shape, "the shape of x, one byte for every block of inputs");
    }
    if (inputs[3]) check_bias(inputs[3]);
    last = weight_.n;
    outputs[0].shape = shape;
  }

  size_t scratch_bytes(const Call& call) const override {
    return Quantised(call, weight_.groups()).bytes;
  }

  int phases() const override { return 2; }

  size_t tasks(const Call& call, int phase) const override {
    const int64_t rows = row_count(call.inputs[0].shape);
    if (phase == 0) return divide_up(rows, task_rows());
    return divide_up(rows, kRowBlock) * divide_up(weight_.tiles(), task_tiles_);
  }

  void run(const Call& call, int phase, size_t task) const override {
    const Quantised x(call, weight_.groups());
    if (phase == 1) return multiply(call, x, static_cast<int64_t>(task));
    quantize(call, x, static_cast<int64_t>(task));
    if (task == 0) count(call, x);
  }

 private:
  /// Where the quantised rows of x lie in scratch memory, array after array.
  struct Quantised {
    int64_t rows, groups;
    bool skip;
    size_t scales_at, sums_at, kept_at, bytes;

    Quantised(const Call& call, int64_t groups)
        : rows(row_count(call.inputs[0].shape)), groups(groups), skip(rows == 1 && call.inputs[2]) {
      const size_t count = static_cast<size_t>(rows * groups);
      scales_at = aligned(count * kGroup * sizeof(int16_t));
      sums_at = scales_at + count * sizeof(float);
      kept_at = sums_at + count * sizeof(float);
      bytes = kept_at + count;
    }

    QuantRows in(std::byte* scratch) const {
      return {rows,
              groups,
              reinterpret_cast<int16_t*>(scratch),
              reinterpret_cast<float*>(scratch + scales_at),
              reinterpret_cast<float*>(scratch + sums_at),
              reinterpret_cast<uint8_t*>(scratch + kept_at)};
    }
  };

  void check_bias(const Tensor& bias) const {
    expect_shape("bias", bias, Shape{1, {weight_.n}}, "[n]");
  }

  int64_t task_rows() const { return std::max(kTaskInputs / weight_.k, int64_t{1}); }

  void quantize(const Call& call, const Quantised& x, int64_t task) const {
    const float* values = call.inputs[0].as<float>();
    const uint8_t* mask = call.inputs[2] ? call.inputs[2].as<uint8_t>() : nullptr;
    const int64_t mask_stride = divide_up(weight_.k, block_);
    const QuantRows to = x.in(call.scratch);
    const int64_t end = std::min(x.rows, (task + 1) * task_rows());
    for (int64_t row = task * task_rows(); row < end; ++row) {
      kernels_.quantize(values + row * weight_.k, weight_.k,
                        mask ? mask + row * mask_stride : nullptr, block_, to, row);
    }
  }

  void multiply(const Call& call, const Quantised& x, int64_t task) const {
    const int64_t chunks = divide_up(weight_.tiles(), task_tiles_);
    const int64_t row = task / chunks * kRowBlock;
    const int64_t tile = task % chunks * task_tiles_;
    const int64_t output = tile * kTile;
    MultiplyArgs args;
    args.weight = call.inputs[1].as<uint8_t>() + tile * weight_.tile_bytes();
    args.bits = weight_.bits;
    args.tiles = std::min(task_tiles_, weight_.tiles() - tile);
    args.x = x.in(call.scratch);
    args.first_row = row;
    args.rows = std::min(kRowBlock, x.rows - row);
    args.skip = x.skip;
    args.bias = call.inputs[3] ? call.inputs[3].as<float>() + output : nullptr;
    args.outputs = std::min(args.tiles * kTile, weight_.n - output);
    args.y = call.outputs[0].as<float>() + row * weight_.n + output;
    args.y_stride = weight_.n;
    kernels_.multiply(args);
  }

  void count(const Call& call, const Quantised& x) const {
    call.metrics->add(bytes_dense, static_cast<double>(weight_.bytes()));
    call.metrics->add(bytes_read, static_cast<double>(x.skip ? bytes_kept(x.in(call.scratch).kept)
                                                             : weight_.bytes()));
  }

  /// What one row reads: of every group with an input kept the vectors of 64 bytes that hold one,
  /// and the scales.
  int64_t bytes_kept(const uint8_t* kept) const {
    constexpr int64_t kVectorBytes = 64;
    int64_t bytes = 0;
    for (int64_t g = 0; g < weight_.groups(); ++g) {
      if (kept[g] == 0) continue;
      const int inputs_a_bit = weight_.bits == 4 ? 2 : 1;  // bits of `kept` that share a vector
      for (int i = 0; i < 8; i += inputs_a_bit) {
        if (kept[g] >> i & ((1 << inputs_a_bit) - 1)) bytes += kVectorBytes;
      }
      bytes += group_bytes(weight_.bits) - quant_bytes(weight_.bits);
    }
    return bytes * weight_.tiles();
  }

  const PackedWeight weight_;
  const int64_t block_;
  const int64_t task_tiles_;
  const MatMulKernels& kernels_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<BlockMatMul>(attributes, kernels);
}

}  // namespace

const OpSpec& block_matmul_spec() {
  using Kind = AttributeSpec::Kind;
  static const OpSpec spec = {
      "BlockMatMul",
      "y = (x * mask) W^T + bias, W block-quantised. x is quantised to 16 bits in every group of "
      "32 "
      "inputs; products are exact.",
      {{"x", Type::float32, false, "[..., k]"},
       {"weight", Type::uint8, false, "[ceil(n / 16), tile bytes], packed by tamiz_ops.pack_*"},
       {"mask", Type::uint8, true, "[..., ceil(k / block)]; 0 leaves a block of inputs out"},
       {"bias", Type::float32, true, "[n]"}},
      {{"y", Type::float32, false, "[..., n]"}},
      false,
      {{"bits", Kind::integer, true, 0, "of a weight: 4 or 8"},
       {"n", Kind::integer, true, 0, "outputs"},
       {"k", Kind::integer, true, 0, "inputs"},
       {"block", Kind::integer, false, 32, "inputs that share a byte of the mask"}},
      {{"matmul.bytes_read", "bytes", "of weight that calls read"},
       {"matmul.bytes_dense", "bytes", "of weight that they would read without a mask"}},
      make};
  return spec;
}

}  // namespace tamiz
