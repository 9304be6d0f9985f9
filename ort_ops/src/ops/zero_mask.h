#pragma once

#include "ops/stage.h"

namespace tamiz {

/// The op `ZeroMask`; its stage runs the kernels of kernels/select.h.
const OpSpec& zero_mask_spec();

}  // namespace tamiz
