// Tokens are sorted by their experts: a group is what goes through one expert, a product of its own
// with the expert's tiles of the weight. Phase 0 quantises the rows of each group, phase 1
// multiplies: a task is some tiles of an expert times a block of its rows. An expert that no token
// takes is not read. With 32 bits what the quants leave is quantised again into a second row, as
// BlockMatMul does. With 8 bits a group of at least as many rows as BlockMatMul asks for is
// multiplied as bytes, where the instruction set can; the bits are those of a smaller group.
#include "ops/experts/expert_matmul.h"

#include <algorithm>
#include <cstring>

#include "kernels/dispatch.h"
#include "kernels/kernels.h"
#include "ops/products/product.h"
#include "ops/products/product_ports.h"

namespace tamiz {
namespace {

#define EXPERT_INPUTS(PORT)                                                                     \
  PORT(x, float32, required, "[..., k], or [..., top, k] where every expert has its own input") \
  PORT(weight, uint8, required,                                                                 \
       "packed, as BlockMatMul's, of n outputs: those of expert 0, of expert 1, …")             \
  PORT(chosen, int32, required, "[..., top], the experts of each token")                        \
  PORT(bias, float32, optional, "[n]")
#define EXPERT_OUTPUTS(PORT) PORT(y, float32, required, "[..., top, n / experts]")
TAMIZ_PORTS(ExpertInput, EXPERT_INPUTS);
TAMIZ_PORTS(ExpertOutput, EXPERT_OUTPUTS);

using In = ExpertInput;
using Out = ExpertOutput;

/// Rows of one expert, of which the quants are at most kRowBlock rows.
struct Block {
  int32_t expert;
  int32_t first;  // among the rows of the expert
};

/// Rows sorted by their experts, in scratch memory. A row is a token in one of its experts.
struct Groups {
  int64_t rows, most;           // of all experts, and most blocks
  ScratchPart<int32_t> order;   // [rows], row numbers, group by group
  ScratchPart<int32_t> begins;  // [experts + 1], where a group begins in `order`
  ScratchPart<int32_t> firsts;  // [experts], the first block of ByteRows of a group that lies so
  ScratchPart<Block> blocks;    // [most]
  ScratchPart<int32_t> counts;  // [2], blocks and experts that are taken
  int64_t each;                 // rows of quants for a row
  QuantisedRows quantised;      // in the order of `order`; the rows of a group lie as QuantRows
  int64_t fewest;               // rows from which on a group lies as ByteRows instead
  QuantisedBytes quantised_bytes;

  /// `bytes`: kernels that take groups of enough rows; null: none.
  Groups(int64_t rows, int64_t experts, int64_t groups, int64_t each, const ByteKernels* bytes)
      : rows(rows),
        most(std::min(rows, experts) + each * rows / kRowBlock),
        each(each),
        quantised(0, 0),
        fewest(bytes ? bytes->fewest : rows + 1),
        quantised_bytes(0, 0) {
    ScratchPlan plan;
    order = plan.reserve<int32_t>(rows);
    begins = plan.reserve<int32_t>(experts + 1);
    firsts = plan.reserve<int32_t>(experts);
    blocks = plan.reserve<Block>(most);
    counts = plan.reserve<int32_t>(2);
    quantised = QuantisedRows(each * rows, groups, plan);
    // The last block of a group may have one row only.
    const int64_t most_bytes = std::min(rows / fewest, experts);
    const int64_t blocks_of_bytes = most_bytes ? rows / kByteRows + most_bytes : 0;
    quantised_bytes = QuantisedBytes(blocks_of_bytes * kByteRows, groups, quantised.plan);
  }

  size_t bytes() const { return quantised_bytes.plan.bytes(); }

  int64_t rows_of(std::byte* scratch, int64_t expert) const {
    const int32_t* const begin = begins.in(scratch) + expert;
    return begin[1] - begin[0];
  }

  /// Whether a group lies as bytes.
  bool are_bytes(std::byte* scratch, int64_t expert) const {
    return rows_of(scratch, expert) >= fewest;
  }

  /// The quants of a group of bytes.
  ByteRows bytes_of(std::byte* scratch, int64_t expert) const {
    ByteRows x = quantised_bytes.in(scratch);
    const int64_t before = firsts.in(scratch)[expert] * x.groups * kByteRows;
    x.rows = rows_of(scratch, expert);
    x.quants += before * kGroup;
    x.scales += before;
    x.half_sums += 2 * before;
    return x;
  }

  /// The quants of a group.
  QuantRows of(std::byte* scratch, int64_t expert) const {
    QuantRows x = quantised.in(scratch);
    const int64_t before = each * begins.in(scratch)[expert] * x.groups;
    x.rows = each * rows_of(scratch, expert);
    x.quants += before * kGroup;
    x.scales += before;
    x.sums += before;
    x.half_sums += 2 * before;
    x.kept += before;
    return x;
  }
};

class ExpertMatMul : public Stage {
 public:
  ExpertMatMul(const Attributes& attributes, const Kernels& kernels)
      : weight_(attributes),
        experts_(PackedWeight::positive(attributes, "experts")),
        one_(of_one(attributes)),
        task_tiles_(
            task_tiles(one_, one_.is_affine() ? kTilesTogether : kTilesTogether * kTilesOfMany)),
        activation_bits_(activation_bits(attributes)),
        kernels_(kernels.matmul),
        affine_kernels_(affine_kernels(kernels)),
        byte_kernels_(takes_bytes(one_, activation_bits_) ? kernels.bytes : nullptr) {}

  void check_constants(Ports inputs) const override {
    if (inputs[In::weight]) weight_.check(inputs[In::weight]);
    if (inputs[In::bias]) check_bias(inputs[In::bias], weight_.n);
  }

  void infer(Ports inputs, Ports outputs) const override {
    const Shape &x = inputs[In::x].shape, &chosen = inputs[In::chosen].shape;
    weight_.check(inputs[In::weight]);
    if (inputs[In::bias]) check_bias(inputs[In::bias], weight_.n);
    if (chosen.rank < 1) throw Error("chosen is a scalar, expected [..., top]");
    Shape shape = chosen;
    const bool own = x.rank == chosen.rank + 1;
    if (own) ++shape.rank;
    shape.dims[shape.rank - 1] = weight_.k;
    expect_shape("x", inputs[In::x], shape, own ? "[..., top, k]" : "[..., k]");
    if (!own) shape.dims[shape.rank++ - 1] = chosen.dims[chosen.rank - 1];
    shape.dims[shape.rank - 1] = one_.n;
    outputs[Out::y].shape = shape;
  }

  size_t scratch_bytes(const Call& call) const override { return groups(call).bytes(); }

  bool prepares_as(const Stage& other, const int* inputs, const int* others) const override {
    const auto* same = dynamic_cast<const ExpertMatMul*>(&other);
    return same && same->weight_.k == weight_.k && same->experts_ == experts_ &&
           same->activation_bits_ == activation_bits_ && !same->byte_kernels_ == !byte_kernels_ &&
           inputs[In::x] == others[In::x] && inputs[In::chosen] == others[In::chosen];
  }

  void prepare(const Call& call) const override {
    const Groups to = groups(call);
    const int32_t* const chosen = call.inputs[In::chosen].as<int32_t>();
    int32_t* const begins = to.begins.in(call.scratch);
    std::fill_n(begins, experts_ + 1, 0);
    for (int64_t row = 0; row < to.rows; ++row) {
      if (chosen[row] < 0 || chosen[row] >= experts_) {
        throw Error("chosen has expert " + std::to_string(chosen[row]) + ", expected 0 to " +
                    std::to_string(experts_ - 1));
      }
      ++begins[chosen[row] + 1];
    }
    int32_t* const counts = to.counts.in(call.scratch);
    int32_t* const firsts = to.firsts.in(call.scratch);
    Block* block = to.blocks.in(call.scratch);
    int32_t first_bytes = 0;
    counts[1] = 0;
    for (int32_t e = 0; e < experts_; ++e) {
      const int32_t rows = begins[e + 1];
      counts[1] += rows > 0;
      firsts[e] = first_bytes;
      if (rows >= to.fewest) first_bytes += whole_blocks(rows) / kByteRows;
      for (int32_t first = 0; first < rows; first += kRowBlock / to.each) *block++ = {e, first};
      begins[e + 1] += begins[e];
    }
    counts[0] = static_cast<int32_t>(block - to.blocks.in(call.scratch));
    int32_t* const order = to.order.in(call.scratch);
    for (int64_t row = 0; row < to.rows; ++row) order[begins[chosen[row]]++] = row;
    for (int64_t e = experts_; e > 0; --e) begins[e] = begins[e - 1];
    begins[0] = 0;
  }

  int phases() const override { return 2; }

  size_t tasks(const Call& call, int phase) const override {
    const Groups of = groups(call);
    if (phase == 0) return row_tasks(of.rows, weight_.k);
    return of.counts.in(call.scratch)[0] * divide_up(one_.tiles(), task_tiles_);
  }

  void run(const Call& call, int phase, size_t task) const override {
    const Groups of = groups(call);
    const int64_t index = static_cast<int64_t>(task);
    if (phase == 0) return quantize(call, of, index);
    if (task == 0) count(call, of);
    multiply(call, of, index);
  }

 private:
  Groups groups(const Call& call) const {
    return Groups(call.inputs[In::chosen].shape.count(), experts_, weight_.groups(),
                  activation_bits_ == 32 ? 2 : 1, byte_kernels_);
  }

  PackedWeight of_one(const Attributes& attributes) const {
    PackedWeight one(attributes);
    if (one.n % (experts_ * kTile)) {
      throw Error("attribute 'n' is " + std::to_string(one.n) + ", expected a multiple of " +
                  std::to_string(kTile) + " for each of " + std::to_string(experts_) + " experts");
    }
    one.n /= experts_;
    return one;
  }

  void quantize(const Call& call, const Groups& of, int64_t task) const {
    const Tensor &x = call.inputs[In::x], &chosen = call.inputs[In::chosen];
    const int64_t top = x.shape.rank == chosen.shape.rank  // tokens of a row of x
                            ? chosen.shape.dims[chosen.shape.rank - 1]
                            : 1;
    const auto quantize = quantizer(kernels_, activation_bits_);
    const int32_t* const order = of.order.in(call.scratch);
    const auto [first, end] = task_of_rows(task, of.rows, weight_.k);
    for (int64_t i = first; i < end; ++i) {
      const int32_t expert = chosen.as<int32_t>()[order[i]];
      const float* const from = x.as<float>() + order[i] / top * weight_.k;
      const int64_t row = i - of.begins.in(call.scratch)[expert];
      if (of.are_bytes(call.scratch, expert)) {
        const ByteRows to = of.bytes_of(call.scratch, expert);
        byte_kernels_->quantize(from, weight_.k, nullptr, kGroup, to, row);
      } else {
        quantize(from, weight_.k, nullptr, kGroup, of.of(call.scratch, expert), row);
      }
    }
  }

  void multiply(const Call& call, const Groups& of, int64_t task) const {
    const int64_t chunks = divide_up(one_.tiles(), task_tiles_);
    const Block block = of.blocks.in(call.scratch)[task / chunks];
    const int64_t tile = task % chunks * task_tiles_;
    Tensor weight = call.inputs[In::weight];
    weight.data = weight.as<uint8_t>() + block.expert * one_.bytes();
    const Tensor& all = call.inputs[In::bias];
    const float* bias = all ? all.as<float>() + block.expert * one_.n : nullptr;
    MultiplyArgs args = product(one_, weight, of.of(call.scratch, block.expert),
                                of.each * block.first, tile, task_tiles_, bias, nullptr);
    const int32_t* const rows =
        of.order.in(call.scratch) + of.begins.in(call.scratch)[block.expert] + block.first;
    float* const y = call.outputs[Out::y].as<float>() + tile * kTile;
    if (args.rows == 1) {
      args.y = y + rows[0] * one_.n;
      return multiply(call, of, block.expert, args);
    }
    thread_local std::vector<float> together;
    together.resize(static_cast<size_t>(args.rows * args.outputs));
    args.y = together.data();
    args.y_stride = args.outputs;
    const float* const of_tiles = args.bias;
    if (of.each == 2) args.bias = nullptr;
    multiply(call, of, block.expert, args);
    if (of.each == 2) add_pairs(args, of_tiles, args.y, args.y_stride);
    for (int64_t r = 0; r < args.rows / of.each; ++r) {
      std::memcpy(y + rows[r] * one_.n, args.y + r * args.outputs, sizeof(float) * args.outputs);
    }
  }

  void multiply(const Call& call, const Groups& of, int64_t expert,
                const MultiplyArgs& args) const {
    if (of.are_bytes(call.scratch, expert)) {
      return byte_kernels_->multiply(args, of.bytes_of(call.scratch, expert));
    }
    if (weight_.is_affine()) return affine_kernels_.multiply(args, weight_.affine);
    kernels_.multiply(args);
  }

  void count(const Call& call, const Groups& of) const {
    const double taken = of.counts.in(call.scratch)[1];
    call.metrics->add(ProductMetric::bytes_dense, static_cast<double>(weight_.bytes()));
    call.metrics->add(ProductMetric::bytes_read, taken * static_cast<double>(one_.bytes()));
  }

  const PackedWeight weight_;
  const int64_t experts_;
  const PackedWeight one_;  // of one expert
  const int64_t task_tiles_;
  const int activation_bits_;
  const MatMulKernels& kernels_;
  const AffineKernels& affine_kernels_;
  const ByteKernels* const byte_kernels_;  // null where they do not take the weight
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<ExpertMatMul>(attributes, kernels);
}

}  // namespace

const OpSpec& expert_matmul_spec() {
  static const OpSpec spec = {
      "ExpertMatMul",
      "y[j] = x W_e^T + bias_e for the experts e of each token. One weight has all of them; those "
      "that no token takes are not read. x is quantised as by BlockMatMul.",
      In::specs(),
      Out::specs(),
      false,
      {kBits,
       {"n", AttributeSpec::Kind::integer, true, 0,
        "outputs of all experts together; a multiple of 16 for each"},
       kInputs,
       {"experts", AttributeSpec::Kind::integer, true, 0, "how many there are"},
       kScaleBits,
       kFormat,
       {"activation_bits", AttributeSpec::Kind::integer, false, 16,
        "of a quantised input: 16 or 8; or 32, twice 16"}},
      ProductMetric::specs(),
      make};
  return spec;
}

}  // namespace tamiz
