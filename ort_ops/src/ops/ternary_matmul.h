#pragma once

#include "ops/stage.h"

namespace tamiz {

/// The op `TernaryMatMul`; its stage runs the kernels of kernels/ternary.h.
const OpSpec& ternary_matmul_spec();

}  // namespace tamiz
