#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `ChannelMatMul`; its stage runs the kernels of kernels/channels/channels.h.
const OpSpec& channel_matmul_spec();

}  // namespace tamiz
