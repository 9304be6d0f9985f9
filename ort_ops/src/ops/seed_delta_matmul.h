#pragma once

#include "ops/stage.h"

namespace tamiz {

/// The op `BlockMatMul`; its stage runs the kernels of kernels/deltas.h and ops/seeded_base.h.
const OpSpec& seed_delta_matmul_spec();

}  // namespace tamiz
