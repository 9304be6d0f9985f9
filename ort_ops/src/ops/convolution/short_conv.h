#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `ShortConv`; its stage runs the kernels of kernels/convolution/short_conv.h.
const OpSpec& short_conv_spec();

}  // namespace tamiz
