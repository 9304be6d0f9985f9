// The kernels of a level (simd/target.h), which CMake compiles once for each. No STL in here: it
// would leak wide instructions.
#include "kernels/attention/attention-inl.h"
#include "kernels/basic/elementwise-inl.h"
#include "kernels/basic/scale-inl.h"
#include "kernels/channels/channels-inl.h"
#include "kernels/convolution/short_conv-inl.h"
#include "kernels/deltas/deltas-inl.h"
#include "kernels/deltas/seedlm-inl.h"
#include "kernels/events/events-inl.h"
#include "kernels/experts/experts-inl.h"
#include "kernels/kernels.h"
#include "kernels/products/matmul-inl.h"
#include "kernels/products/wide-inl.h"
#include "kernels/recurrence/delta_net-inl.h"
#include "kernels/recurrence/selective_scan-inl.h"
#include "kernels/recurrence/state_space-inl.h"
#include "kernels/selection/select-inl.h"
#include "kernels/selection/shortlist-inl.h"
#include "kernels/selection/signs-inl.h"
#include "kernels/sketch/key_scores-inl.h"
#include "kernels/sketch/sketch-inl.h"
#include "kernels/ternary/popcount-inl.h"
#include "kernels/ternary/ternary-inl.h"

namespace tamiz {

#if defined(TAMIZ_VBMI)
namespace amx {
extern const ByteKernels level_bytes;
}
#endif

namespace TAMIZ_TARGET {

#if defined(TAMIZ_DOT)
extern const ByteKernels level_bytes;  // of kernels/level_bytes.cc
constexpr const ByteKernels* kBytes = &level_bytes;
#else
constexpr const ByteKernels* kBytes = nullptr;
#endif

constexpr Kernels table(const char* isa, const ByteKernels* bytes) {
  return {
      isa,
      matmul_kernels,
      bytes,
      wide_kernels,
      channel_kernels,
      delta_kernels,
      attention_kernels,
      elementwise_kernels,
      shortlist_kernels,
      event_kernels,
      expert_kernels,
      select_kernels,
      sign_kernels,
      sketch_kernels,
      key_score_kernels,
      seedlm_kernels,
      ternary_kernels,
      popcount_kernels,
      short_conv_kernels,
      delta_net_kernels,
      state_space_kernels,
      scan_kernels,
      scale_rows,
  };
}

extern const Kernels level;
const Kernels level = table(TAMIZ_ISA_NAME, kBytes);

}  // namespace TAMIZ_TARGET

#if defined(TAMIZ_VBMI)
namespace amx {
extern const Kernels level;
const Kernels level = avx512::table("amx", &level_bytes);
}  // namespace amx
#endif

}  // namespace tamiz
