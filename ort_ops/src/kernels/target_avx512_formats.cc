// Products with the formats of GGUF files for x86-64 with AVX-512: apart from target_avx512.cc, so
// that both are compiled at the same time. No STL in here.
#define TAMIZ_AVX512 1

#include "kernels/products/formats-inl.h"
