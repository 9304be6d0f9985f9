// The weighted sum of what the experts of a token give.
#pragma once

#include "engine/op_spec.h"

namespace tamiz {

const OpSpec& expert_sum_spec();

}  // namespace tamiz
