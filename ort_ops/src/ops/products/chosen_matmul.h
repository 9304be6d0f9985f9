#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `ChosenMatMul`; its stage runs the kernels of kernels/chosen/chosen.h.
const OpSpec& chosen_matmul_spec();

}  // namespace tamiz
