// Switches: a technique that a run may do without.
//
// An op of such a technique has an optional input `without`, one number that is an input of the
// graph. Where the number is not 0, the op computes in this run what a graph without the technique
// computes, and keeps its state so that the next run can use the technique again.
#pragma once

#include <string>

#include "base/shapes.h"

namespace tamiz {

#define TAMIZ_SWITCH_DOC "[1], an input of the graph: a number other than 0 switches this off"
#define TAMIZ_SWITCH(PORT) PORT(without, int64, optional, TAMIZ_SWITCH_DOC)

/// Throws Error where a switch that is given is not one number known before the run.
inline void check_switch(const char* name, const Tensor& without) {
  if (!without) return;
  expect_shape(name, without, Shape{1, {1}}, "one number");
  if (without.data) return;
  throw Error(std::string(name) + " is computed in the program, expected an input of the node");
}

/// Whether a checked switch is given and set.
inline bool switched_off(const Tensor& without) { return without && *without.as<int64_t>() != 0; }

}  // namespace tamiz
