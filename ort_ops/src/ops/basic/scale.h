#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `Scale`; its stage runs the kernel of kernels/basic/scale.h.
const OpSpec& scale_spec();

}  // namespace tamiz
