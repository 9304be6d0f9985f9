// Products with the weights of the experts that each token takes.
#pragma once

#include "engine/op_spec.h"

namespace tamiz {

const OpSpec& expert_matmul_spec();

}  // namespace tamiz
