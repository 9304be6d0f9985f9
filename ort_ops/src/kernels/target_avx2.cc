// Kernels for x86-64 with AVX2, FMA and F16C. No STL in here: it would leak wide instructions.
#define TAMIZ_TARGET avx2
#define TAMIZ_AVX2 1

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

const Kernels kernels_avx2 = {
    "avx2",
#ifdef TAMIZ_HAS_MATMUL
    avx2::matmul_kernels,
#endif
#ifdef TAMIZ_HAS_ATTENTION
    avx2::attention_kernels,
#endif
#ifdef TAMIZ_HAS_ELEMENTWISE
    avx2::elementwise_kernels,
#endif
};

}  // namespace tamiz
