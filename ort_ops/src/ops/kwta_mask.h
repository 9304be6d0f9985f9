#pragma once

#include "ops/stage.h"

namespace tamiz {

/// The op `KwtaMask`; its stage runs the kernels of kernels/select.h.
const OpSpec& kwta_mask_spec();

}  // namespace tamiz
