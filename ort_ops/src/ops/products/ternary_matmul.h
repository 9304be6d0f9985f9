#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `TernaryMatMul`; its stage runs the kernels of kernels/ternary/ternary.h.
const OpSpec& ternary_matmul_spec();

}  // namespace tamiz
