#pragma once

#include "ops/stage.h"

namespace tamiz {

/// The op `PopcountMatMul`; its stage runs the kernels of kernels/popcount.h.
const OpSpec& popcount_matmul_spec();

}  // namespace tamiz
