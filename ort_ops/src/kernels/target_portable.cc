// The scalar reference: every kernel as its equation reads, for any CPU.
#define TAMIZ_PORTABLE 1

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

const Kernels kernels_portable = {
    "portable",
    portable::matmul_kernels,
    nullptr,
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
