#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `SwiGLU`; its stage runs the kernels of kernels/basic/elementwise.h.
const OpSpec& swiglu_spec();

}  // namespace tamiz
