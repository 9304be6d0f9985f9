#pragma once

#include "ops/stage.h"

namespace tamiz {

/// The op `BlockMatMul`; its stage runs the kernels of kernels/matmul.h.
const OpSpec& block_matmul_spec();

}  // namespace tamiz
