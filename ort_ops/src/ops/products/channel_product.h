// A product with a weight packed by input channel (kernels/channels/channels.h), for stages that
// have one: the weight's shape, the rows of x in scratch memory, and the tasks of the product.
#pragma once

#include <algorithm>

#include "base/scratch.h"
#include "kernels/kernels.h"
#include "ops/products/packed_weight.h"
#include "ops/products/quantised_rows.h"

namespace tamiz {

struct ChannelWeight {
  int64_t n, k;
  int scale_bits;

  explicit ChannelWeight(const Attributes& attributes)
      : n(PackedWeight::positive(attributes, "n")),
        k(PackedWeight::positive(attributes, "k")),
        scale_bits(PackedWeight::scale_bits_of(attributes, 4)) {
    // the bytes of a panel are counted in 32 bits
    constexpr int64_t kMost = UINT32_MAX / PanelLayout{kPanel, 1, 16}.bytes() * kGroup;
    if (k > kMost) {
      throw Error("attribute 'k' is " + std::to_string(k) + ", expected at most " +
                  std::to_string(kMost));
    }
  }

  int64_t groups() const { return group_count(k); }
  int64_t half_panels() const { return divide_up(n, kHalfPanel); }
  int64_t panels() const { return divide_up(n, kPanel); }
  int64_t half_panel_bytes() const { return PanelLayout{kHalfPanel, groups(), scale_bits}.bytes(); }
  int64_t bytes() const { return half_panels() * half_panel_bytes(); }
  /// Of a panel, padding included.
  PanelLayout layout(int64_t panel) const {
    return {std::min(kPanel, half_panels() * kHalfPanel - panel * kPanel), groups(), scale_bits};
  }
  const uint8_t* at(const Tensor& weight, int64_t panel) const {
    return weight.as<uint8_t>() + 2 * panel * half_panel_bytes();
  }

  void check(const Tensor& weight) const {
    const std::string meaning = "64 outputs a row, n = " + std::to_string(n) +
                                ", k = " + std::to_string(k) +
                                (scale_bits == 16 ? "" : ", scale_bits = 8");
    expect_shape("weight", weight, Shape{3, {half_panels(), 4, half_panel_bytes() / 4}},
                 meaning.c_str());
  }
};

/// The rows of x; of a single row also its active inputs.
class ChannelRows {
 public:
  ChannelRows(const Tensor& x, const ChannelWeight& weight, bool masked)
      : rows_(row_count(x.shape), weight.groups()),
        masked_(masked),
        scale_bits_(weight.scale_bits),
        plan_(rows_.plan) {
    if (!single()) return;
    const int64_t inputs = rows_.groups * kGroup;
    listed_ = plan_.reserve<Listed>(1);
    groups_ = plan_.reserve<ActiveGroup>(rows_.groups);
    records_ = plan_.reserve<uint32_t>(inputs + ActiveInputs::kMostAhead);
    high_ = plan_.reserve<int8_t>(inputs);
    low_ = plan_.reserve<int8_t>(inputs);
  }

  int64_t rows() const { return rows_.rows; }
  bool single() const { return rows_.rows == 1; }

  size_t bytes() const { return plan_.bytes(); }

  size_t prepare_tasks(int64_t k) const { return rows_.tasks(k); }
  void prepare(const Kernels& kernels, const Tensor& x, const Tensor& mask, int64_t block,
               std::byte* scratch, int64_t task) const {
    rows_.quantize(kernels.matmul, x, mask, block, scratch, task);
    if (!single()) return;
    listed(scratch) = kernels.channels.list(in(scratch), 0, masked_, scale_bits_, active(scratch));
  }

  QuantRows in(std::byte* scratch) const { return rows_.in(scratch); }
  ActiveInputs active(std::byte* scratch) const {
    return {groups_.in(scratch), records_.in(scratch), high_.in(scratch), low_.in(scratch)};
  }
  /// What `active` holds.
  Listed& listed(std::byte* scratch) const { return *listed_.in(scratch); }

 private:
  QuantisedRows rows_;
  bool masked_;
  int scale_bits_;
  ScratchPlan plan_;
  ScratchPart<Listed> listed_;
  ScratchPart<ActiveGroup> groups_;
  ScratchPart<uint32_t> records_;
  ScratchPart<int8_t> high_, low_;
};

}  // namespace tamiz
