#pragma once

#include "ops/stage.h"

namespace tamiz {

/// The op `BlockMatMul`; its stage runs the kernels of kernels/deltas.h.
const OpSpec& proc_sparse_matmul_spec();

}  // namespace tamiz
