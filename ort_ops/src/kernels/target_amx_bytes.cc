// Products of rows of 8 bits for x86-64 with AVX-512 and AMX. No STL in here.
#define TAMIZ_AVX512 1
#define TAMIZ_AMX 1

#include "kernels/products/bytes-inl.h"
