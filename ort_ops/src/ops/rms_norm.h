#pragma once

#include "ops/stage.h"

namespace tamiz {

/// The op `RMSNorm`; its stage runs the kernels of kernels/elementwise.h.
const OpSpec& rms_norm_spec();

}  // namespace tamiz
