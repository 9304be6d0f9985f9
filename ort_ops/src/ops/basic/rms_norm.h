#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `RMSNorm`; its stage runs the kernels of kernels/basic/elementwise.h.
const OpSpec& rms_norm_spec();

}  // namespace tamiz
