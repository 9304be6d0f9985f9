#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `BlockMatMul`; its stage runs the kernels of kernels/products/matmul.h.
const OpSpec& block_matmul_spec();

}  // namespace tamiz
