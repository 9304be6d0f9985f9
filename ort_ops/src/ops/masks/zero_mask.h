#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `ZeroMask`; its stage runs the kernels of kernels/selection/select.h.
const OpSpec& zero_mask_spec();

}  // namespace tamiz
