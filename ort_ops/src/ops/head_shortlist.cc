// Phases of a run with few rows: quantise x; z = P x; quantise z; estimates S z + offset of all
// outputs, where the last elements of z meet signs, and the rank of every tile; choose tiles; exact
// product of these. A run with more rows is a BlockMatMul.
#include "ops/head_shortlist.h"

#include <limits>

#include "kernels/kernels.h"
#include "ops/block_matmul.h"
#include "ops/metrics.h"
#include "ops/product.h"

namespace tamiz {
namespace {

constexpr int64_t kListed = 8;  // chosen tiles of a task
enum Input : size_t {
  x_in,
  weight_in,
  mask_in,
  bias_in,
  project_in,
  sketch_in,
  offset_in,
  signs_in
};
enum Phase { quantise_x, project, quantise_z, scan, choose, refine, phase_count };
enum Metric : size_t { bytes_read, bytes_dense, shortlisted };

class HeadShortlist : public Stage {
 public:
  HeadShortlist(const Attributes& attributes, const Kernels& kernels)
      : exact_(block_matmul_spec().make(attributes, kernels)),
        weight_(attributes),
        sketch_(PackedWeight::four_or_eight(attributes, "sketch_bits"), weight_.n,
                PackedWeight::positive(attributes, "dims")),
        planes_(static_cast<int>(attributes.ints.at("planes"))),
        sign_dims_(planes_ == 0 ? 0 : PackedWeight::positive(attributes, "sign_dims")),
        project_(8, sketch_.k + sign_dims_, weight_.k),
        keep_(std::min(PackedWeight::positive(attributes, "tiles"), weight_.tiles())),
        most_rows_(PackedWeight::positive(attributes, "rows")),
        estimate_(attributes.ints.at("estimate") != 0),
        kernels_(kernels) {
    if (planes_ < 0 || planes_ > 2) {
      throw Error("attribute 'planes' is " + std::to_string(planes_) + ", expected 0 to 2");
    }
    if (most_rows_ > kRowBlock) {
      throw Error("attribute 'rows' is " + std::to_string(most_rows_) + ", expected 1 to " +
                  std::to_string(kRowBlock));
    }
  }

  void check_constants(Ports inputs) const override {
    exact_->check_constants(inputs);
    check_sketch(inputs);
  }

  void infer(Ports inputs, Ports outputs) const override {
    exact_->infer(inputs, outputs);
    check_sketch(inputs);
    if (planes_ > 0 && !inputs[signs_in]) throw Error("input signs is missing: planes is not 0");
  }

  size_t scratch_bytes(const Call& call) const override {
    return few(call) ? Layout(*this, call).bytes : exact_->scratch_bytes(call);
  }

  int phases() const override { return phase_count; }

  size_t tasks(const Call& call, int phase) const override {
    if (phase == quantise_x) return exact_->tasks(call, phase);
    if (!few(call)) return phase == 1 ? exact_->tasks(call, phase) : 0;
    const int64_t rows = row_count(call.inputs[x_in].shape);
    if (rows == 0) return 0;
    switch (phase) {
      case project:
        return divide_up(project_.tiles(), task_tiles(project_));
      case scan:
        return divide_up(sketch_.tiles(), task_tiles(sketch_));
      case choose:
        return rows;
      case refine:
        return rows * divide_up(keep_, kListed);
    }
    return 1;
  }

  void run(const Call& call, int phase, size_t task_number) const override {
    if (phase == quantise_x || !few(call)) return exact_->run(call, phase, task_number);
    const Memory memory(*this, call);
    const int64_t task = static_cast<int64_t>(task_number);
    switch (phase) {
      case project:
        return multiply_project(call, memory, task);
      case quantise_z:
        count(call, memory);
        for (int64_t row = 0; row < memory.rows; ++row) quantise(memory, row);
        return;
      case scan:
        return scan_tiles(call, memory, task);
      case choose:
        kernels_.shortlist.select(memory.ranks + task * weight_.tiles(), weight_.tiles(), keep_,
                                  memory.list + task * keep_);
        return;
      case refine:
        return refine_tiles(call, memory, task);
    }
  }

 private:
  /// The scratch memory of a run with few rows; x lies where BlockMatMul puts it.
  struct Layout {
    int64_t rows;
    QuantisedRows x, z_quants;
    // z [rows, dims + sign_dims], ranks [rows, tiles], list [rows, keep], sign_scales [rows],
    // sign_tables [rows, groups of sign_dims, kSignTables]
    size_t z_quants_at, z_at, ranks_at, list_at, sign_scales_at, sign_tables_at, bytes;
    Layout(const HeadShortlist& op, const Call& call)
        : rows(row_count(call.inputs[x_in].shape)),
          x(rows, op.weight_.groups()),
          z_quants(rows, op.sketch_.groups()) {
      const auto size = [&](int64_t elements) {
        return aligned(static_cast<size_t>(rows * elements) * sizeof(float));
      };
      z_quants_at = aligned(x.bytes);
      z_at = z_quants_at + aligned(z_quants.bytes);
      ranks_at = z_at + size(op.project_.n);
      list_at = ranks_at + size(op.weight_.tiles());
      sign_scales_at = list_at + size(op.keep_);
      sign_tables_at = sign_scales_at + size(1);
      bytes = sign_tables_at + static_cast<size_t>(rows * op.sign_table_bytes());
    }
  };

  struct Memory : Layout {
    QuantRows x, z_quants;
    float* z;
    int32_t* ranks;
    int32_t* list;
    float* sign_scales;
    uint8_t* sign_tables;

    Memory(const HeadShortlist& op, const Call& call)
        : Layout(op, call),
          x(Layout::x.in(call.scratch)),
          z_quants(Layout::z_quants.in(call.scratch + z_quants_at)),
          z(reinterpret_cast<float*>(call.scratch + z_at)),
          ranks(reinterpret_cast<int32_t*>(call.scratch + ranks_at)),
          list(reinterpret_cast<int32_t*>(call.scratch + list_at)),
          sign_scales(reinterpret_cast<float*>(call.scratch + sign_scales_at)),
          sign_tables(reinterpret_cast<uint8_t*>(call.scratch + sign_tables_at)) {}
  };

  bool few(const Call& call) const { return row_count(call.inputs[x_in].shape) <= most_rows_; }

  int64_t sign_table_bytes() const { return group_count(sign_dims_) * kSignTables; }

  int64_t sign_bytes() const {
    return planes_ == 0 ? 0 : sign_tile_bytes(group_count(sign_dims_), planes_);
  }

  void check_sketch(Ports inputs) const {
    if (inputs[project_in]) project_.check("project", inputs[project_in]);
    if (inputs[sketch_in]) sketch_.check("sketch", inputs[sketch_in]);
    if (inputs[offset_in]) {
      expect_shape("offset", inputs[offset_in], Shape{1, {weight_.n}}, "[n]");
    }
    if (inputs[signs_in]) {
      expect_shape("signs", inputs[signs_in], Shape{2, {weight_.tiles(), sign_bytes()}},
                   "tiles and tile bytes of n, planes and sign_dims");
    }
  }

  void quantise(const Memory& memory, int64_t row) const {
    const float* const z = memory.z + row * project_.n;
    kernels_.matmul.quantize(z, sketch_.k, nullptr, 1, memory.z_quants, row);
    if (planes_ == 0) return;
    kernels_.signs.tables(z + sketch_.k, sign_dims_, memory.sign_tables + row * sign_table_bytes(),
                          memory.sign_scales + row);
  }

  void multiply_project(const Call& call, const Memory& memory, int64_t task) const {
    const int64_t tiles = task_tiles(project_);
    kernels_.matmul.multiply(product(project_, call.inputs[project_in], memory.x, 0, task * tiles,
                                     tiles, nullptr, memory.z));
  }

  void scan_tiles(const Call& call, const Memory& memory, int64_t task) const {
    const int64_t tiles = task_tiles(sketch_);
    const MultiplyArgs args =
        product(sketch_, call.inputs[sketch_in], memory.z_quants, 0, task * tiles, tiles,
                call.inputs[offset_in].as<float>(), call.outputs[0].as<float>());
    kernels_.matmul.multiply(args);
    for (int64_t row = 0; row < memory.rows; ++row) {
      float* const y = args.y + row * weight_.n;
      if (planes_ > 0) {
        kernels_.signs.add({call.inputs[signs_in].as<uint8_t>() + task * tiles * sign_bytes(),
                            args.tiles, group_count(sign_dims_), planes_,
                            memory.sign_tables + row * sign_table_bytes(), memory.sign_scales[row],
                            args.outputs, y});
      }
      kernels_.shortlist.rank(y, args.outputs, memory.ranks + row * weight_.tiles() + task * tiles);
      if (!estimate_) std::fill_n(y, args.outputs, -std::numeric_limits<float>::infinity());
    }
  }

  void refine_tiles(const Call& call, const Memory& memory, int64_t task) const {
    const int64_t chunks = divide_up(keep_, kListed);
    const int64_t row = task / chunks;
    const int64_t first = task % chunks * kListed;
    const float* bias = call.inputs[bias_in] ? call.inputs[bias_in].as<float>() : nullptr;
    MultiplyArgs args = product(weight_, call.inputs[weight_in], memory.x, row, 0, weight_.tiles(),
                                bias, call.outputs[0].as<float>());
    args.rows = 1;
    args.skip = memory.rows == 1 && call.inputs[mask_in];
    kernels_.shortlist.multiply(args, memory.list + row * keep_ + first,
                                std::min(kListed, keep_ - first));
  }

  void count(const Call& call, const Memory& memory) const {
    const double refined = static_cast<double>(memory.rows * keep_ * weight_.tile_bytes());
    call.metrics->add(bytes_dense, static_cast<double>(weight_.bytes()));
    call.metrics->add(bytes_read, static_cast<double>(project_.bytes() + sketch_.bytes() +
                                                      weight_.tiles() * sign_bytes()) +
                                      refined);
    call.metrics->add(shortlisted, static_cast<double>(memory.rows));
  }

  const std::unique_ptr<Stage> exact_;
  const PackedWeight weight_, sketch_;
  const int planes_;
  const int64_t sign_dims_;
  const PackedWeight project_;
  const int64_t keep_, most_rows_;
  const bool estimate_;
  const Kernels& kernels_;
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
        "levels; "
        "then y = e, but in the `tiles` tiles with the highest max(e) the bits that BlockMatMul "
        "gives. With all tiles it is BlockMatMul.",
        exact.inputs,
        exact.outputs,
        false,
        exact.attributes,
        exact.metrics,
        make};
    made.inputs.insert(
        made.inputs.end(),
        {{"project", Type::uint8, false,
          "P: [dims + sign_dims, k], 8 bits, packed by tamiz_ops.pack_int8"},
         {"sketch", Type::uint8, false, "S: [n, dims], packed by tamiz_ops.pack_*"},
         {"offset", Type::float32, false, "[n]; the bias is part of it"},
         {"signs", Type::uint8, true, "R: [n, sign_dims], packed by tamiz_ops.pack_signs"}});
    made.attributes.insert(
        made.attributes.end(),
        {{"dims", Kind::integer, true, 0, "of the sketch, elements of z"},
         {"sketch_bits", Kind::integer, false, 4, "of a number of the sketch: 4 or 8"},
         {"planes", Kind::integer, false, 0, "bits of a number of R: 0 (there is none), 1 or 2"},
         {"sign_dims", Kind::integer, false, 0, "elements of r"},
         {"tiles", Kind::integer, true, 0, "that are computed exactly for every row"},
         {"rows", Kind::integer, false, 1, "1 to 128; a run with more rows of x is exact"},
         {"estimate", Kind::integer, false, 1, "1: other outputs are estimates; 0: -infinity"}});
    made.metrics.push_back({"head.shortlisted", "rows", "of x that took the shortlist"});
    return made;
  }();
  return spec;
}

}  // namespace tamiz
