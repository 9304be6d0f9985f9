// The `Fused` op: a node that runs a program given as text.
#pragma once

#include <vector>

#include "ops/program.h"

namespace tamiz {

const OpSpec& fused_spec();

/// Reads the attributes `program` and `outputs`. Throws Error naming line and token.
Program fused_program(const Attributes& attributes, size_t inputs, const std::vector<bool>& wanted,
                      const Kernels& kernels, NodeMetrics& metrics);

}  // namespace tamiz
