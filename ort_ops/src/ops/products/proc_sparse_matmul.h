#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `BlockMatMul`; its stage runs the kernels of kernels/deltas/deltas.h.
const OpSpec& proc_sparse_matmul_spec();

}  // namespace tamiz
