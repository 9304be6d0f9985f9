// Kernels for x86-64 with AVX2, FMA and F16C. No STL in here: it would leak wide instructions.
#define TAMIZ_TARGET avx2
#define TAMIZ_AVX2 1

#include "kernels/attention-inl.h"
#include "kernels/elementwise-inl.h"
#include "kernels/events-inl.h"
#include "kernels/kernels.h"
#include "kernels/matmul-inl.h"
#include "kernels/select-inl.h"
#include "kernels/shortlist-inl.h"
#include "kernels/signs-inl.h"
#include "kernels/sketch-inl.h"

// after the sketches, whose parts they use
#include "kernels/key_scores-inl.h"

// after the product, whose parts they use
#include "kernels/channels-inl.h"
#include "kernels/deltas-inl.h"
#include "kernels/seedlm-inl.h"
#include "kernels/ternary-inl.h"

// after the weight whose planes it counts
#include "kernels/popcount-inl.h"

namespace tamiz {

const Kernels kernels_avx2 = {
    "avx2",
    avx2::matmul_kernels,
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
