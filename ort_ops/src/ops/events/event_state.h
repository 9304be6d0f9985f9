// What EventSelect and EventSum keep of a sequence: one row [width] of past and present.
//
//   reference [k]   what each input was last computed with       } only where alpha is not 0
//   y         [n]   the product of that, bias included           }
//   valid           1 when the row holds a state, 0 at the start
//   off             1 when a gap was too large: dense until the sequence ends
//   pace            nanoseconds that a chosen input took, 0 where unknown
#pragma once

#include "base/attributes.h"
#include "base/shapes.h"
#include "base/tensor.h"
#include "ops/products/packed_weight.h"

namespace tamiz {

struct EventState {
  int64_t k, n;
  bool carried;  // alpha is not 0

  EventState(const Attributes& attributes)
      : k(PackedWeight::positive(attributes, "k")),
        n(PackedWeight::positive(attributes, "n")),
        carried(attributes.floats.at("alpha") != 0) {}

  int64_t y_at() const { return carried ? k : 0; }
  int64_t valid_at() const { return carried ? k + n : 0; }
  int64_t off_at() const { return valid_at() + 1; }
  int64_t pace_at() const { return valid_at() + 2; }
  int64_t width() const { return valid_at() + 3; }

  void check(const Tensor& past, int64_t batch) const {
    expect_shape("past", past, Shape{2, {batch, width()}},
                 carried ? "batch, k + n + 3" : "batch, 3");
  }
};

/// The output `plan` of EventSelect, which EventSum reads: [batch, 4].
enum EventPlan : int64_t { plan_carry, plan_channels, plan_off, plan_checked, plan_width };

}  // namespace tamiz
