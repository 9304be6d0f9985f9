// Kernels for x86-64 with AVX-512 (VNNI, VBMI, VPOPCNTDQ). No STL in here: it would leak wide
// instructions.
#define TAMIZ_AVX512 1

#include "kernels/attention/attention-inl.h"
#include "kernels/basic/elementwise-inl.h"
#include "kernels/channels/channels-inl.h"
#include "kernels/deltas/deltas-inl.h"
#include "kernels/deltas/seedlm-inl.h"
#include "kernels/events/events-inl.h"
#include "kernels/kernels.h"
#include "kernels/products/matmul-inl.h"
#include "kernels/selection/select-inl.h"
#include "kernels/selection/shortlist-inl.h"
#include "kernels/selection/signs-inl.h"
#include "kernels/sketch/key_scores-inl.h"
#include "kernels/sketch/sketch-inl.h"
#include "kernels/ternary/popcount-inl.h"
#include "kernels/ternary/ternary-inl.h"

namespace tamiz {

extern const ByteKernels byte_kernels_avx512, byte_kernels_amx;

namespace {

constexpr Kernels table(const char* isa, const ByteKernels* bytes) {
  return {
      isa,
      avx512::matmul_kernels,
      bytes,
      avx512::channel_kernels,
      avx512::delta_kernels,
      avx512::attention_kernels,
      avx512::elementwise_kernels,
      avx512::shortlist_kernels,
      avx512::event_kernels,
      avx512::select_kernels,
      avx512::sign_kernels,
      avx512::sketch_kernels,
      avx512::key_score_kernels,
      avx512::seedlm_kernels,
      avx512::ternary_kernels,
      avx512::popcount_kernels,
  };
}

}  // namespace

const Kernels kernels_avx512 = table("avx512", &byte_kernels_avx512);
const Kernels kernels_amx = table("amx", &byte_kernels_amx);

}  // namespace tamiz
