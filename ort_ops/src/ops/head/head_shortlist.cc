// Phases of a run with few rows: quantise x; z = P x; quantise z; estimates S z + offset of all
// outputs, where the last elements of z meet signs, and the rank of every tile; choose tiles;
// refine their estimates with more signs, and their ranks; choose tiles among them; exact product
// of these. A run with more rows is a BlockMatMul.
#include "ops/head/head_shortlist.h"

#include <limits>
#include <utility>

#include "base/metrics.h"
#include "base/switches.h"
#include "ops/attention/segments.h"
#include "ops/products/block_matmul.h"
#include "ops/products/product.h"

namespace tamiz {
namespace {

constexpr int64_t kRefined = 32, kListed = 8;  // chosen tiles of a task
#define HEAD_SHORTLIST_INPUTS(PORT)                                                 \
  BLOCK_MATMUL_INPUTS(PORT)                                                         \
  PORT(project, uint8, required,                                                    \
       "P: [dims + sign_dims, k], 8 bits, packed by tamiz_ops.pack_int8")           \
  PORT(sketch, uint8, required, "S: [n, dims], packed by tamiz_ops.pack_*")         \
  PORT(offset, float32, required, "[n]; the bias is part of it")                    \
  PORT(signs, uint8, optional, "R: [n, sign_dims], packed by tamiz_ops.pack_signs") \
  PORT(refinement, uint8, optional, "R': as R")                                     \
  PORT(refined_offset, float32, optional, "[n]")                                    \
  TAMIZ_SWITCH(PORT)                                                                \
  PORT(sequences, int64, optional,                                                  \
       "as Attention takes it: a run with segments uses the shortlist for all its rows")
#define HEAD_SHORTLIST_METRICS(METRIC) \
  PRODUCT_METRICS(METRIC)              \
  METRIC(shortlisted, "head.shortlisted", "rows", "Rows of x that used the shortlist.")
TAMIZ_PORTS(HeadShortlistInput, HEAD_SHORTLIST_INPUTS);
TAMIZ_METRICS(HeadShortlistMetric, HEAD_SHORTLIST_METRICS);

using In = HeadShortlistInput;
using Out = ProductOutput;
using Metric = HeadShortlistMetric;

enum Phase {
  quantise_x,
  project,
  quantise_z,
  scan,
  choose,
  refine,
  choose_refined,
  multiply_exactly,
  phase_count
};
constexpr std::pair<size_t, const char*> kSigned[] = {
    {In::signs, "signs"}, {In::refinement, "refinement"}, {In::refined_offset, "refined_offset"}};
constexpr int64_t kMostRows = 128;  // of a run without segments that use the shortlist

class HeadShortlist : public Stage {
 public:
  HeadShortlist(const Attributes& attributes, const Kernels& kernels)
      : exact_(block_matmul_spec().make(attributes, kernels)),
        weight_(attributes),
        sketch_(PackedWeight::four_or_eight(attributes, "sketch_bits"), weight_.n,
                PackedWeight::positive(attributes, "dims")),
        sign_dims_(attributes.ints.at("sign_dims")),
        project_(8, sketch_.k + sign_dims_, weight_.k),
        keep_(std::min(PackedWeight::positive(attributes, "tiles"), weight_.tiles())),
        refined_(std::clamp(sign_dims_ == 0 ? 0 : attributes.ints.at("refined"), keep_,
                            weight_.tiles())),
        most_rows_(PackedWeight::positive(attributes, "rows")),
        block_(PackedWeight::positive(attributes, "block")),
        estimate_(attributes.ints.at("estimate") != 0),
        quantize_(activation_bits(attributes, 16) == 8 ? kernels.matmul.quantize_bytes
                                                       : kernels.matmul.quantize),
        kernels_(kernels),
        affine_kernels_(affine_kernels(kernels)) {
    if (sign_dims_ < 0) {
      throw Error("attribute 'sign_dims' is " + std::to_string(sign_dims_) +
                  ", expected 0 or more");
    }
    if (most_rows_ > kMostRows) {
      throw Error("attribute 'rows' is " + std::to_string(most_rows_) + ", expected 1 to " +
                  std::to_string(kMostRows));
    }
  }

  void check_constants(Ports inputs) const override {
    exact_->check_constants(inputs);
    check_sketch(inputs);
  }

  void infer(Ports inputs, Ports outputs) const override {
    exact_->infer(inputs, outputs);
    check_sketch(inputs);
    check_switch("without", inputs[In::without]);
    for (const auto& [port, name] : kSigned) {
      if (sign_dims_ == 0 || inputs[port]) continue;
      throw Error(std::string("input ") + name + " is missing: sign_dims is not 0");
    }
  }

  size_t scratch_bytes(const Call& call) const override {
    return few(call) ? Layout(*this, call).plan.bytes() : exact_->scratch_bytes(call);
  }

  int phases() const override { return phase_count; }

  size_t tasks(const Call& call, int phase) const override {
    if (!few(call)) return phase <= 1 ? exact_->tasks(call, phase) : 0;
    const int64_t rows = row_count(call.inputs[In::x].shape);
    if (rows == 0) return 0;
    switch (phase) {
      case quantise_x:
        return row_tasks(rows, weight_.k);
      case project:
        return divide_up(project_.tiles(), task_tiles(project_));
      case scan:
        return divide_up(sketch_.tiles(), task_tiles(sketch_));
      case choose:
      case choose_refined:
        return rows;
      case refine:
        return rows * divide_up(refined_, kRefined);
      case multiply_exactly:
        return rows * divide_up(keep_, kListed);
    }
    return 1;
  }

  void run(const Call& call, int phase, size_t task_number) const override {
    if (!few(call)) return exact_->run(call, phase, task_number);
    const Memory memory(Layout(*this, call), call.scratch);
    const int64_t task = static_cast<int64_t>(task_number);
    switch (phase) {
      case quantise_x:
        return quantize_task(quantize_, call.inputs[In::x], call.inputs[In::mask], block_, memory.x,
                             task);
      case project:
        return multiply_project(call, memory, task);
      case quantise_z:
        count(call, memory);
        for (int64_t row = 0; row < memory.rows; ++row) quantise(memory, row);
        return;
      case scan:
        return scan_tiles(call, memory, task);
      case choose:
        return kernels_.shortlist.select(memory.ranks + task * weight_.tiles(), weight_.tiles(),
                                         refined_, memory.refined + task * refined_);
      case refine:
        return refine_tiles(call, memory, task);
      case choose_refined:
        return choose_among_refined(memory, task);
      case multiply_exactly:
        return multiply_listed(call, memory, task);
    }
  }

  /// What is multiplied first.
  Reads reads(const Call& call) const override {
    if (!few(call)) return exact_->reads(call);
    return {call.inputs[In::project].as<uint8_t>(), static_cast<size_t>(project_.bytes())};
  }

 private:
  /// The scratch memory of a run with few rows.
  struct Layout {
    int64_t rows;
    QuantisedRows x, z_quants;
    ScratchPlan plan;
    ScratchPart<float> z;              // [rows, dims + sign_dims]
    ScratchPart<int32_t> ranks;        // [rows, tiles]
    ScratchPart<int32_t> refined;      // [rows, refined]
    ScratchPart<int32_t> list;         // [rows, keep]
    ScratchPart<float> sign_scales;    // [rows]
    ScratchPart<uint8_t> sign_tables;  // [rows, groups of sign_dims, kSignTables]

    Layout(const HeadShortlist& op, const Call& call)
        : rows(row_count(call.inputs[In::x].shape)),
          x(rows, op.weight_.groups()),
          z_quants(rows, op.sketch_.groups(), x.plan),
          plan(z_quants.plan) {
      z = plan.reserve<float>(rows * op.project_.n);
      ranks = plan.reserve<int32_t>(rows * op.weight_.tiles());
      refined = plan.reserve<int32_t>(rows * op.refined_);
      list = plan.reserve<int32_t>(rows * op.keep_);
      sign_scales = plan.reserve<float>(rows);
      sign_tables = plan.reserve<uint8_t>(rows * op.sign_table_bytes());
    }
  };

  struct Memory {
    int64_t rows;
    QuantRows x, z_quants;
    float* z;
    int32_t* ranks;    // of all tiles, then of those that are refined
    int32_t* refined;  // numbers of tiles, in ascending order
    int32_t* list;     // of the exact ones
    float* sign_scales;
    uint8_t* sign_tables;

    Memory(const Layout& layout, std::byte* scratch)
        : rows(layout.rows),
          x(layout.x.in(scratch)),
          z_quants(layout.z_quants.in(scratch)),
          z(layout.z.in(scratch)),
          ranks(layout.ranks.in(scratch)),
          refined(layout.refined.in(scratch)),
          list(layout.list.in(scratch)),
          sign_scales(layout.sign_scales.in(scratch)),
          sign_tables(layout.sign_tables.in(scratch)) {}
  };

  bool few(const Call& call) const {
    if (switched_off(call.inputs[In::without])) return false;
    return in_pages(call.inputs[In::sequences]) ||
           row_count(call.inputs[In::x].shape) <= most_rows_;
  }

  int64_t sign_table_bytes() const { return group_count(sign_dims_) * kSignTables; }

  int64_t sign_bytes() const {
    return sign_dims_ == 0 ? 0 : sign_tile_bytes(group_count(sign_dims_));
  }

  void check_sketch(Ports inputs) const {
    if (inputs[In::project]) project_.check("project", inputs[In::project]);
    if (inputs[In::sketch]) sketch_.check("sketch", inputs[In::sketch]);
    if (inputs[In::offset]) {
      expect_shape("offset", inputs[In::offset], Shape{1, {weight_.n}}, "[n]");
    }
    for (const auto& [port, name] : kSigned) {
      if (!inputs[port]) continue;
      if (port == In::refined_offset) {
        expect_shape(name, inputs[port], Shape{1, {weight_.n}}, "[n]");
      } else {
        expect_shape(name, inputs[port], Shape{2, {weight_.tiles(), sign_bytes()}},
                     "tiles and tile bytes of n and sign_dims");
      }
    }
  }

  void quantise(const Memory& memory, int64_t row) const {
    const float* const z = memory.z + row * project_.n;
    kernels_.matmul.quantize(z, sketch_.k, nullptr, 1, memory.z_quants, row);
    if (sign_dims_ == 0) return;
    kernels_.signs.tables(z + sketch_.k, sign_dims_, memory.sign_tables + row * sign_table_bytes(),
                          memory.sign_scales + row);
  }

  void multiply_project(const Call& call, const Memory& memory, int64_t task) const {
    const int64_t tiles = task_tiles(project_);
    for (int64_t row = 0; row < memory.rows; row += kRowBlock) {
      kernels_.matmul.multiply(product(project_, call.inputs[In::project], memory.x, row,
                                       task * tiles, tiles, nullptr, memory.z));
    }
  }

  void scan_tiles(const Call& call, const Memory& memory, int64_t task) const {
    const int64_t tiles = task_tiles(sketch_);
    for (int64_t first = 0; first < memory.rows; first += kRowBlock) {
      const MultiplyArgs args =
          product(sketch_, call.inputs[In::sketch], memory.z_quants, first, task * tiles, tiles,
                  call.inputs[In::offset].as<float>(), call.outputs[Out::y].as<float>());
      kernels_.matmul.multiply(args);
      for (int64_t row = first; row < first + args.rows; ++row) {
        float* const y = args.y + (row - first) * weight_.n;
        if (sign_dims_ > 0) {
          SignArgs signs = signs_of(memory, row, call.inputs[In::signs]);
          signs.weight += task * tiles * sign_bytes();
          signs.tiles = args.tiles;
          signs.outputs = args.outputs;
          signs.y = y;
          kernels_.signs.add(signs);
        }
        int32_t* const ranks = memory.ranks + row * weight_.tiles() + task * tiles;
        kernels_.shortlist.rank(y, args.outputs, ranks);
      }
    }
  }

  void refine_tiles(const Call& call, const Memory& memory, int64_t task) const {
    const int64_t chunks = divide_up(refined_, kRefined);
    const int64_t row = task / chunks;
    const int64_t first = task % chunks * kRefined;
    const int64_t count = std::min(kRefined, refined_ - first);
    const int32_t* const list = memory.refined + row * refined_ + first;
    float* const y = call.outputs[Out::y].as<float>() + row * weight_.n;
    if (sign_dims_ > 0) {
      SignArgs signs = signs_of(memory, row, call.inputs[In::refinement]);
      signs.list = list;
      signs.tiles = count;
      signs.offset = call.inputs[In::refined_offset].as<float>();
      signs.outputs = weight_.n;
      signs.y = y;
      kernels_.signs.add(signs);
    }
    int32_t* const ranks = memory.ranks + row * weight_.tiles() + first;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t output = list[i] * kTile;
      kernels_.shortlist.rank(y + output, std::min(kTile, weight_.n - output), ranks + i);
    }
  }

  void choose_among_refined(const Memory& memory, int64_t row) const {
    int32_t* const list = memory.list + row * keep_;
    kernels_.shortlist.select(memory.ranks + row * weight_.tiles(), refined_, keep_, list);
    for (int64_t i = 0; i < keep_; ++i) list[i] = memory.refined[row * refined_ + list[i]];
  }

  void multiply_listed(const Call& call, const Memory& memory, int64_t task) const {
    const int64_t chunks = divide_up(keep_, kListed);
    const int64_t row = task / chunks;
    const int64_t first = task % chunks * kListed;
    const int32_t* const list = memory.list + row * keep_;
    const int64_t count = std::min(kListed, keep_ - first);
    const float* bias = call.inputs[In::bias] ? call.inputs[In::bias].as<float>() : nullptr;
    MultiplyArgs args = product(weight_, call.inputs[In::weight], memory.x, row, 0, weight_.tiles(),
                                bias, call.outputs[Out::y].as<float>());
    args.rows = 1;
    args.skip = memory.rows == 1 && call.inputs[In::mask];
    multiply_tiles(kernels_, affine_kernels_, weight_, args, list + first, count);
    if (estimate_) return;
    // Up to the next tile of the list; the first task begins with the first tile.
    int64_t from = first == 0 ? 0 : list[first] * kTile;
    for (int64_t i = first; i <= first + count; ++i) {
      const int64_t to = i < keep_ ? list[i] * kTile : weight_.n;
      if (from < to) std::fill(args.y + from, args.y + to, -std::numeric_limits<float>::infinity());
      from = to + kTile;
    }
  }

  /// The product of a row with signs; which tiles, outputs and y is left to say.
  SignArgs signs_of(const Memory& memory, int64_t row, const Tensor& signs) const {
    SignArgs args = {};
    args.weight = signs.as<uint8_t>();
    args.groups = group_count(sign_dims_);
    args.tables = memory.sign_tables + row * sign_table_bytes();
    args.scale = memory.sign_scales[row];
    return args;
  }

  void count(const Call& call, const Memory& memory) const {
    const double chosen =
        static_cast<double>(memory.rows * (refined_ * sign_bytes() + keep_ * weight_.tile_bytes()));
    call.metrics->add(Metric::bytes_dense, static_cast<double>(weight_.bytes()));
    call.metrics->add(Metric::bytes_read, static_cast<double>(project_.bytes() + sketch_.bytes() +
                                                              weight_.tiles() * sign_bytes()) +
                                              chosen);
    call.metrics->add(Metric::shortlisted, static_cast<double>(memory.rows));
  }

  const std::unique_ptr<Stage> exact_;
  const PackedWeight weight_, sketch_;
  const int64_t sign_dims_;
  const PackedWeight project_;
  const int64_t keep_, refined_, most_rows_, block_;
  const bool estimate_;
  decltype(MatMulKernels::quantize) const quantize_;
  const Kernels& kernels_;
  const AffineKernels& affine_kernels_;
};

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<HeadShortlist>(attributes, kernels);
}

}  // namespace

const OpSpec& head_shortlist_spec() {
  using Kind = AttributeSpec::Kind;
  static const OpSpec spec = [] {
    const OpSpec& exact = block_matmul_spec();
    OpSpec made = {
        "HeadShortlist",
        "BlockMatMul that computes exactly only the tiles of 16 outputs whose estimates are "
        "highest: e = S z + R q + offset for all outputs, (z, r) = P x, q = r rounded to 63 "
        "levels; e += R' q + refined_offset in the `refined` tiles with the highest max(e); then "
        "y = e, but in the `tiles` of these with the highest max(e) the bits that BlockMatMul "
        "gives. With all tiles it is BlockMatMul.",
        In::specs(),
        Out::specs(),
        false,
        {exact.attributes.begin(), exact.attributes.end() - 1},  // but scale_inputs
        Metric::specs(),
        make};
    made.attributes.insert(
        made.attributes.end(),
        {{"dims", Kind::integer, true, 0, "of the sketch, elements of z"},
         {"sketch_bits", Kind::integer, false, 4, "of a number of the sketch: 4 or 8"},
         {"sign_dims", Kind::integer, false, 0, "elements of r; 0: there are no signs"},
         {"refined", Kind::integer, false, 0, "tiles with finer estimates; at least `tiles`"},
         {"tiles", Kind::integer, true, 0, "that are computed exactly for every row"},
         {"rows", Kind::integer, false, 1, "1 to 128; a run with more rows of x is exact"},
         {"estimate", Kind::integer, false, 1, "1: other outputs are estimates; 0: -infinity"}});
    return made;
  }();
  return spec;
}

}  // namespace tamiz
