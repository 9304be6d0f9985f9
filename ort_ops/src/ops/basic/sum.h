#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `Sum`; its stage runs the kernels of kernels/basic/elementwise.h.
const OpSpec& sum_spec();

}  // namespace tamiz
