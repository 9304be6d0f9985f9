#pragma once

#include "ops/stage.h"

namespace tamiz {

const OpSpec& head_shortlist_spec();

}  // namespace tamiz
