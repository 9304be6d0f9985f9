// The scalar reference: every kernel as its equation reads, for any CPU.
#define TAMIZ_TARGET portable

#include "kernels/kernels.h"
#ifdef TAMIZ_HAS_MATMUL
#include "kernels/matmul-inl.h"
#endif
#ifdef TAMIZ_HAS_ATTENTION
#include "kernels/attention-inl.h"
#endif
#ifdef TAMIZ_HAS_ELEMENTWISE
#include "kernels/elementwise-inl.h"
#endif

namespace tamiz {

const Kernels kernels_portable = {
    "portable",
#ifdef TAMIZ_HAS_MATMUL
    portable::matmul_kernels,
#endif
#ifdef TAMIZ_HAS_ATTENTION
    portable::attention_kernels,
#endif
#ifdef TAMIZ_HAS_ELEMENTWISE
    portable::elementwise_kernels,
#endif
};

}  // namespace tamiz
