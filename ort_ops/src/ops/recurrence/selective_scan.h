#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `SelectiveScan`; its stage runs the kernel of kernels/recurrence/selective_scan.h.
const OpSpec& selective_scan_spec();

}  // namespace tamiz
