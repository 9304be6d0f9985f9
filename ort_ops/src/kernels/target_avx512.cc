// Kernels for x86-64 with AVX-512 (VNNI, VBMI, VPOPCNTDQ). No STL in here: it would leak wide
// instructions.
#define TAMIZ_TARGET avx512
#define TAMIZ_AVX512 1

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

const Kernels kernels_avx512 = {
    "avx512",
#ifdef TAMIZ_HAS_MATMUL
    avx512::matmul_kernels,
#endif
#ifdef TAMIZ_HAS_ATTENTION
    avx512::attention_kernels,
#endif
#ifdef TAMIZ_HAS_ELEMENTWISE
    avx512::elementwise_kernels,
#endif
};

}  // namespace tamiz
