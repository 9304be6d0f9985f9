#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `PopcountMatMul`; its stage runs the kernels of kernels/ternary/popcount.h.
const OpSpec& popcount_matmul_spec();

}  // namespace tamiz
