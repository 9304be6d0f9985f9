#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `Mamba2`; its stage runs the kernels of kernels/recurrence/state_space.h.
const OpSpec& mamba2_spec();

}  // namespace tamiz
