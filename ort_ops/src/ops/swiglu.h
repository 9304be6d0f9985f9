#pragma once

#include "ops/stage.h"

namespace tamiz {

/// The op `SwiGLU`; its stage runs the kernels of kernels/elementwise.h.
const OpSpec& swiglu_spec();

}  // namespace tamiz
