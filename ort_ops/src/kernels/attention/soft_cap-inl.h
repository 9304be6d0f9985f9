// The soft cap of scores:  c tanh(x / c)  for a cap c > 0; c = 0 leaves them as they are.
#pragma once

#include <stdint.h>

#include "simd/simd.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// The one way to cap a score, so that it has the same bits wherever it is computed.
inline Vec soft_cap(Vec x, float cap) { return broadcast(cap) * tanh(x * broadcast(1.0f / cap)); }

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
