// The experts that a token takes, by the scores of a router.
#pragma once

#include "engine/op_spec.h"

namespace tamiz {

const OpSpec& expert_router_spec();

}  // namespace tamiz
