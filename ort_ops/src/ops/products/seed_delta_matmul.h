#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `BlockMatMul`; its stage runs the kernels of kernels/deltas/deltas.h and
/// ops/products/seeded_base.h.
const OpSpec& seed_delta_matmul_spec();

}  // namespace tamiz
