#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `KwtaMask`; its stage runs the kernels of kernels/selection/select.h.
const OpSpec& kwta_mask_spec();

}  // namespace tamiz
