#pragma once

#include "ops/stage.h"

namespace tamiz {

/// The op `Attention`; its stage runs the kernels of kernels/attention.h.
const OpSpec& attention_spec();

}  // namespace tamiz
