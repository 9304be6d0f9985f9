// Kernels for x86-64 with AVX2, FMA and F16C. No STL in here: it would leak wide instructions.
#define TAMIZ_AVX2 1

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

const Kernels kernels_avx2 = {
    "avx2",
    avx2::matmul_kernels,
    nullptr,
    avx2::channel_kernels,
    avx2::delta_kernels,
    avx2::attention_kernels,
    avx2::elementwise_kernels,
    avx2::shortlist_kernels,
    avx2::event_kernels,
    avx2::select_kernels,
    avx2::sign_kernels,
    avx2::sketch_kernels,
    avx2::key_score_kernels,
    avx2::seedlm_kernels,
    avx2::ternary_kernels,
    avx2::popcount_kernels,
};

}  // namespace tamiz
