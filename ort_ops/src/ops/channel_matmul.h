#pragma once

#include "ops/stage.h"

namespace tamiz {

/// The op `ChannelMatMul`; its stage runs the kernels of kernels/channels.h.
const OpSpec& channel_matmul_spec();

}  // namespace tamiz
