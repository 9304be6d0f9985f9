#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `SignMask`; its stage runs the kernels of kernels/chosen/predict.h.
const OpSpec& sign_mask_spec();

}  // namespace tamiz
