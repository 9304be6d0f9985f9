// Products of rows of 8 bits for x86-64 with AVX-512, compiled apart from target_avx512.cc. No STL
// in here.
#define TAMIZ_AVX512 1

#include "kernels/products/bytes-inl.h"
