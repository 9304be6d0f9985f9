// One table of kernels an instruction set. Included by the target_*.cc files: no STL here.
#pragma once

#if __has_include("kernels/attention.h")
#include "kernels/attention.h"
#define TAMIZ_HAS_ATTENTION 1
#endif
#if __has_include("kernels/elementwise.h")
#include "kernels/elementwise.h"
#define TAMIZ_HAS_ELEMENTWISE 1
#endif
#if __has_include("kernels/matmul.h")
#include "kernels/matmul.h"
#define TAMIZ_HAS_MATMUL 1
#endif

namespace tamiz {

struct Kernels {
  const char* isa;
#ifdef TAMIZ_HAS_MATMUL
  MatMulKernels matmul;
#endif
#ifdef TAMIZ_HAS_ATTENTION
  AttentionKernels attention;
#endif
#ifdef TAMIZ_HAS_ELEMENTWISE
  ElementwiseKernels elementwise;
#endif
};

extern const Kernels kernels_portable;
#if defined(__x86_64__)
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
#endif

}  // namespace tamiz
