// The scalar reference: every kernel as its equation reads, for any CPU.
#define TAMIZ_TARGET portable

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

const Kernels kernels_portable = {
    "portable",
    portable::matmul_kernels,
    portable::channel_kernels,
    portable::delta_kernels,
    portable::attention_kernels,
    portable::elementwise_kernels,
    portable::shortlist_kernels,
    portable::event_kernels,
    portable::select_kernels,
    portable::sign_kernels,
    portable::sketch_kernels,
    portable::key_score_kernels,
    portable::seedlm_kernels,
    portable::ternary_kernels,
    portable::popcount_kernels,
};

}  // namespace tamiz
