#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `GatedDeltaNet`; its stage runs the kernels of kernels/recurrence/delta_net.h.
const OpSpec& gated_delta_net_spec();

}  // namespace tamiz
