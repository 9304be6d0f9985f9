#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `LayerNorm`; its stage runs the kernels of kernels/basic/elementwise.h.
const OpSpec& layer_norm_spec();

}  // namespace tamiz
