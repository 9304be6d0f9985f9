// Kernels for x86-64 with AVX-512 (VNNI, VBMI, VPOPCNTDQ). No STL in here: it would leak wide
// instructions.
#define TAMIZ_TARGET avx512
#define TAMIZ_AVX512 1

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

const Kernels kernels_avx512 = {
    "avx512",
    avx512::matmul_kernels,
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

}  // namespace tamiz
