// Products with the formats of GGUF files for x86-64 with AVX2: apart from target_avx2.cc, so that
// both are compiled at the same time. No STL in here.
#define TAMIZ_TARGET avx2
#define TAMIZ_AVX2 1

#include "kernels/products/matmul-inl.h"
#include "kernels/selection/shortlist-inl.h"

// after the product and the shortlist, whose parts they use
#include "kernels/products/formats-inl.h"
