// The `Fused` op: a node that runs a program given as text.
#pragma once

#include <vector>

#include "engine/program.h"

namespace tamiz {

const OpSpec& fused_spec();

/// How many outputs a node has, by its attributes `outputs` and `stacks`. Throws Error.
TAMIZ_API size_t fused_outputs(const Attributes& attributes);

/// Reads the attributes `program`, `outputs` and `stacks`, of a node with `inputs` inputs. Throws
/// Error naming line and token.
Program fused_program(const Attributes& attributes, size_t inputs, const std::vector<bool>& wanted,
                      const Kernels& kernels, NodeMetrics& metrics);

}  // namespace tamiz
